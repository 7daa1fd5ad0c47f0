"""The small reader beside the hooks."""

from __future__ import annotations

from nri_cpu.nri.hooks import container_name
from nri_cpu.nri.nri_pb2 import Container

LABEL = {"io.kubernetes.container.name": "from-label"}


def test_a_containers_name_is_its_field() -> None:
    assert container_name(Container(name="app", labels=LABEL)) == "app"


def test_without_the_field_it_is_cris_label() -> None:
    assert container_name(Container(labels=LABEL)) == "from-label"


def test_without_either_it_is_empty() -> None:
    assert container_name(Container()) == ""
