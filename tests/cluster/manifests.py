"""Manifests as users write them, for tests: requests, claims, templates, containers, pods, deployments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hack.node.container_image import NAME as IMAGE

Manifest = dict[str, Any]

API = "resource.k8s.io/v1"

# As users have them in their manifests, whatever the product calls them.
DRIVER, CAPACITY, API_VERSION = "dra.cpu", "dra.cpu/cpu", "v1alpha1"

# Tells in the log where its first instruction ran, then waits until it is killed.
FIRST = ("/bin/first",)


def request(
    name: str = "cpus",
    cpus: int | str | None = None,
    *,
    count: int | None = None,
    device_class: str = DRIVER,
    where: Sequence[str] = (),
    **more: Any,
) -> Manifest:
    """A request for `cpus` CPUs of one device, or for `count` devices; `where` are CEL expressions."""
    return {"name": name, "exactly": exactly(cpus, count=count, device_class=device_class, where=where, **more)}


def exactly(
    cpus: int | str | None = None,
    *,
    count: int | None = None,
    device_class: str = DRIVER,
    where: Sequence[str] = (),
    **more: Any,
) -> Manifest:
    """What a request says of its devices."""
    said: Manifest = {"deviceClassName": device_class, **more}
    if cpus is not None:
        said["capacity"] = {"requests": {CAPACITY: str(cpus)}}
    if count is not None:
        said["count"] = count
    if where:
        said["selectors"] = [{"cel": {"expression": expression}} for expression in where]
    return said


def choice(name: str, **alternatives: Manifest) -> Manifest:
    """A request with alternatives by name, the best first."""
    first = [{"name": name, **alternative} for name, alternative in alternatives.items()]
    return {"name": name, "firstAvailable": first}


def opaque(requests: Sequence[str] = (), **cpu_config: Any) -> Manifest:
    """Our parameters for some requests, or for all."""
    parameters = {"apiVersion": API_VERSION, "cpuConfig": cpu_config}
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


def device_class(name: str, *config: Manifest, **spec: Any) -> Manifest:
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    said = [{"opaque": one["opaque"]} for one in config]
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors, "config": said, **spec},
    }


def claim(name: str, *requests: Manifest, **devices: Any) -> Manifest:
    """A claim; `devices`: constraints, config."""
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def template(name: str, *requests: Manifest, **devices: Any) -> Manifest:
    spec = claim(name, *requests, **devices)["spec"]
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": spec}}


def container(name: str, *claims: str, command: Sequence[str] = FIRST, **more: Any) -> Manifest:
    """A container with some of its pod's claims: a claim's name, or claim/request."""
    given = [dict(zip(("name", "request"), one.split("/"), strict=False)) for one in claims]
    resources = {**more.pop("resources", {}), "claims": given}
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": resources,
        **more,
    }


def pod(
    name: str,
    *containers: Manifest,
    claims: Sequence[str] = (),
    templates: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    """A pod; `claims` and `templates` are called in it as they are outside."""
    metadata = {"name": name, "labels": dict(labels or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": pod_spec(*containers, claims=claims, templates=templates, **spec),
    }


def pod_spec(*containers: Manifest, claims: Sequence[str] = (), templates: Sequence[str] = (), **more: Any) -> Manifest:
    """On the node's network, since a network of its own costs seconds, and without a token, which it doesn't need."""
    given = [{"name": one, "resourceClaimName": one} for one in claims]
    made = [{"name": one, "resourceClaimTemplateName": one} for one in templates]
    return {
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [*given, *made],
        "containers": list(containers),
        **more,
    }


def simple(name: str, cpus: int, **more: Any) -> tuple[Manifest, Manifest]:
    """A claim and a pod of the same name whose container `main` has it."""
    return claim(name, request(cpus=cpus)), pod(name, container("main", name), claims=[name], **more)


def deployment(name: str, replicas: int, spec: Manifest) -> Manifest:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            # A new pod before an old one's CPUs are free would need twice as many.
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
