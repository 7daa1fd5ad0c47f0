"""What a Configure request tells of the runtime."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.nri.nri_pb2 import ConfigureRequest
from nri_cpu.nri.runtime import Runtime, Version


def runtime(
    name: str = "containerd", version: str = "v2.1.4", nri: str = "", registration: int = 0, request: int = 0
) -> Runtime:
    return Runtime.from_configure(
        ConfigureRequest(
            runtime_name=name,
            runtime_version=version,
            NRI_version=nri,
            registration_timeout=registration,
            request_timeout=request,
        )
    )


def test_timeouts_are_seconds() -> None:
    told = runtime(registration=7500, request=250)
    assert (told.registration_timeout, told.request_timeout) == (7.5, 0.25)


@pytest.mark.parametrize(("request_timeout", "synchronizes"), [(2000, True), (0, False)])
def test_a_runtime_that_tells_its_timeouts_synchronizes_plugins_that_it_starts(
    request_timeout: int, synchronizes: bool
) -> None:
    assert runtime(request=request_timeout).synchronizes_launched is synchronizes


@pytest.mark.parametrize("absent", [0, -1])
def test_timeouts_that_are_not_told_are_the_defaults(absent: int) -> None:
    told = runtime(registration=absent, request=absent)
    assert (told.registration_timeout, told.request_timeout) == (5.0, 2.0)


@pytest.mark.parametrize(
    ("name", "version", "nri"),
    [
        ("containerd", "v1.7.0", (0, 3, 0)),
        ("containerd", "1.7.6", (0, 3, 0)),
        ("containerd", "v1.7.7", (0, 4, 0)),
        ("containerd", "v1.7.15", (0, 6, 0)),
        ("containerd", "v1.7.24", (0, 6, 1)),
        ("containerd", "1.7.26-0ubuntu1~24.04", (0, 6, 1)),  # a pre-release, for all that can be told
        ("containerd", "v1.7.30", (0, 8, 0)),
        ("containerd", "v2.1.6", (0, 8, 0)),
        ("containerd", "v2.2.0", (0, 10, 0)),
        ("containerd", "v2.2.1", (0, 11, 0)),
        ("containerd", "v9.0.0", (0, 11, 0)),  # at least
        ("v2", "v2.0.0", (0, 8, 0)),  # early containerd 2
        ("cri-o", "1.26.1", (0, 2, 0)),
        ("cri-o", "1.28.4", (0, 3, 0)),
        ("cri-o", "1.29.1", (0, 5, 0)),
        ("cri-o", "1.30.9", (0, 6, 0)),
        ("cri-o", "1.31.0", (0, 6, 1)),
        ("cri-o", "1.33.2", (0, 9, 0)),
        ("cri-o", "1.34.0", (0, 10, 0)),
        ("cri-o", "1.35.0+git1234", (0, 11, 0)),
        ("containerd", "v1.6.36", None),
        ("containerd", "", None),
        ("containerd", "main", None),
        ("containerd", "2.1", None),
        ("", "v2.1.4", None),
        ("dockershim", "v2.1.4", None),
    ],
)
def test_the_nri_version_follows_from_the_runtimes(name: str, version: str, nri: Version | None) -> None:
    assert runtime(name, version).nri_version == nri


@pytest.mark.parametrize("text", ["", "(devel)", "0.0.0-unknown", "v0.0.0", "unknown", "0.12"])
def test_an_nri_version_that_says_nothing_is_inferred(text: str) -> None:
    assert runtime(nri=text).nri_version == (0, 8, 0)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("v0.12.1", (0, 12, 1)),
        ("0.12.5", (0, 12, 5)),
        ("v0.12.1+dirty", (0, 12, 1)),
        ("v0.12.1-0.20260601120000-0123456789ab", (0, 12, 0)),
        ("v0.13.0-rc.1", (0, 13, 0)),
    ],
)
def test_an_nri_version_that_is_told_goes_first(text: str, version: Version) -> None:
    assert runtime(nri=text).nri_version == version


@pytest.mark.fault("N1")
@pytest.mark.parametrize(
    ("nri", "safe"),
    [("v0.12.1", True), ("v1.0.0", True), ("v0.12.0", False), ("v0.12.1-0.20260601120000-0123456789ab", False)],
)
def test_unsolicited_updates_are_safe_from_0_12_1_on(nri: str, safe: bool) -> None:
    assert runtime(nri=nri).unsolicited_updates_safe is safe


@pytest.mark.fault("N1")
@pytest.mark.parametrize("name", ["containerd", "cri-o", "someone else"])
def test_unsolicited_updates_are_never_safe_by_inference(name: str) -> None:
    assert not runtime(name, "v99.0.0").unsolicited_updates_safe


@given(st.text(), st.text(), st.text(), st.integers(-(2**63), 2**63 - 1))
def test_any_configure_request_is_read(name: str, version: str, nri: str, milliseconds: int) -> None:
    told = runtime(name, version, nri, milliseconds, milliseconds)
    assert told.request_timeout > 0
    assert told.registration_timeout > 0
    assert str(told)


def test_a_runtime_reads_like_a_name_in_a_log() -> None:
    assert str(runtime()) == "containerd v2.1.4 (NRI 0.8.0)"
    assert str(runtime("", "")) == "a runtime without a name of unknown version (NRI of unknown version)"
