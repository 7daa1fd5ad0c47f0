"""ResourceClaim objects for tests, as the API server gives them."""

from __future__ import annotations

from typing import Any

UID = "11111111-2222-4333-8444-555555555555"
NODE = "node-a"


def uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def result(device: str = "cpudevnuma000", cpus: object = "2", request: str = "cpus", **more: Any) -> dict[str, Any]:
    """One result of ours; `cpus` None leaves the capacity out, as in individual mode."""
    entry = {"request": request, "driver": "dra.cpu", "pool": NODE, "device": device}
    capacity = {} if cpus is None else {"consumedCapacity": {"dra.cpu/cpu": cpus}}
    return {**entry, **capacity, **more}


def manifest(
    *results: dict[str, Any], claim_uid: str = UID, name: str = "one", pod: str | None = None
) -> dict[str, Any]:
    """An allocated claim; without results, one of 2 CPUs on NUMA node 0."""
    reserved = [{"resource": "pods", "name": "p", "uid": pod}] if pod else []
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": claim_uid},
        "spec": {"devices": {"requests": [{"name": "cpus"}]}},
        "status": {"allocation": {"devices": {"results": list(results or [result()])}}, "reservedFor": reserved},
    }


def config(parameters: object, source: str = "FromClaim", requests: list[str] | None = None) -> dict[str, Any]:
    """One entry of an allocation's config, for this driver; without requests, for all of them."""
    opaque = {"driver": "dra.cpu", "parameters": parameters}
    return {"source": source, "requests": requests or [], "opaque": opaque}


def configured(*entries: Any, results: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """An allocated claim with these entries of config."""
    claim = manifest(*(results or []))
    claim["status"]["allocation"]["devices"]["config"] = list(entries)
    return claim
