"""Reads the facts of one node: the kernel's by one command in its box, files in one archive, the rest by API and CRI.

The files are read under dra-cpu's own lock, so that they are those between two transactions.
"""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dra.devices import CAPACITY, DRIVER
from dra.metadata import SPEC_PREFIX
from hack.node.cri import cri_pb2 as pb
from hack.node.cri.client import Cri, CriError
from hack.product import STATE
from nri_cpu.checkpoint.cdi import CPUSET_ENV, FILE_PREFIX, PREPARATION_ENV, record_from_spec
from nri_cpu.checkpoint.codec import checkpoint_from_bytes, owners_from_bytes
from nri_cpu.cpuset import CPUSet
from tests.cluster.facts import Allocated, Facts, Running

if TYPE_CHECKING:
    from hack.kube.cluster import Cluster
    from hack.kube.node import KubeNode

Manifest = Mapping[str, Any]

_METADATA = "var/lib/kubelet/plugins/dra.cpu/dra-device-metadata"
_KUBELET = "var/lib/kubelet/dra_manager_state"
_CDI = "run/cdi"

# A container's cgroup is named after its id, in hexadecimal digits; a process may end between two lines.
_KERNEL = """
echo online $(cat /sys/devices/system/cpu/online)
for path in $(find /sys/fs/cgroup/kubepods -type d); do
    case ${path##*/} in *[!0-9a-f]*) continue ;; esac
    echo container ${path##*/}
    echo written $(cat $path/cpuset.cpus)
    echo cpus $(cat $path/cpuset.cpus.effective)
    first=yes
    for pid in $(cat $path/cgroup.procs); do
        grep ^Cpus_allowed_list: /proc/$pid/status
        [ $first ] && tr '\\0' '\\n' < /proc/$pid/environ | grep -E '^(DRA_CPUSET|NRI_CPU_PREPARATION)_'
        first=
    done
done 2> /dev/null
true
"""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """What the kernel says of one container."""

    written: CPUSet
    cpus: CPUSet
    allowed: frozenset[CPUSet]
    env: Mapping[str, str]


def observe(cluster: Cluster, node: KubeNode) -> Facts:
    """The facts of one node now; each source is read once, one after the other."""
    files = _files(node)
    online, cgroups = kernel_facts(node.box.run(_KERNEL).text)
    pods = cluster.api.list("Pod")
    claims = {
        (claim["metadata"]["namespace"], claim["metadata"]["name"]): claim
        for claim in cluster.api.list("ResourceClaim")
    }
    wanted = claims_of_containers(pods, claims)
    with node.box.cri() as cri:
        known = cri.containers()
        containers = tuple(_running(cri, known, cgroups, wanted))
    raw = files.get(f"{STATE[1:]}/owners.json")
    kubelet = dict(kubelet_claims(files.get(_KUBELET, b"")))
    return Facts(
        online=online,
        checkpoint=checkpoint_from_bytes(files[f"{STATE[1:]}/checkpoint.json"])[0],
        owners=owners_from_bytes(raw)[0].owners if raw else {},
        specs={
            record.uid: record
            for name, content in files.items()
            if name.startswith(f"{_CDI}/{FILE_PREFIX}") and name.endswith(".json")
            for record in [record_from_spec(content)]
        },
        leftovers=tuple(name for name in files if name.endswith(".tmp")),
        containers=containers,
        allocated=dict(allocations(claims.values(), node.name)),
        kubelet=frozenset(kubelet),
        handed=frozenset(uid for uid, devices in kubelet.items() if devices),
        offered=offered(cluster.api.list("ResourceSlice"), node.name),
        metadata=frozenset(metadata_claims(files)),
        mounts=frozenset(mounted_claims(files)),
        unseen=tuple(unseen({one.id for one in containers}, known, pods, node.name)),
    )


def poke_runtime(node: KubeNode) -> None:
    """Have the runtime call nri-cpu once, whose answer carries whatever updates are due.

    An update of a running shared container with the CPU shares that it has: nothing else changes.
    """
    with node.box.cri() as cri:
        for container in cri.containers():
            with suppress(CriError):  # it has ended meanwhile
                spec = container_info(cri, container.id)["runtimeSpec"]
                if container.state == pb.CONTAINER_RUNNING and not _has_claims(spec):
                    cri.update(container.id, cpu_shares=spec["linux"]["resources"]["cpu"]["shares"])
                    return


def container_info(cri: Cri, container_id: str) -> Manifest:
    """What the runtime tells of a container to who wants to know all; raises CriError."""
    request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
    got: pb.ContainerStatusResponse = cri.call("ContainerStatus", request, pb.ContainerStatusResponse)
    info: Manifest = json.loads(got.info["info"])
    return info


def _has_claims(spec: Manifest) -> bool:
    return any(setting.startswith(PREPARATION_ENV) for setting in spec["process"]["env"])


def _files(node: KubeNode) -> dict[str, bytes]:
    """The files of dra-cpu and of the kubelet's claims by path, without the slash in front."""
    paths = [STATE[1:], _CDI, _METADATA, _KUBELET]
    command = f"tar -c $(ls -d {shlex.join(paths)} 2> /dev/null)"
    lock = f"{STATE}/serialize.lock"
    packed = node.box.run(f"cd / && touch {lock} && flock {lock} sh -c {shlex.quote(command)}").stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        opened = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: content.read() for name, content in opened.items() if content}


def kernel_facts(text: str) -> tuple[CPUSet, dict[str, Cgroup]]:
    """What the command above has printed: the CPUs on line, and the cgroups with processes by container id."""
    head, *parts = text.split("\ncontainer ")
    online = CPUSet.parse(head.removeprefix("online "))
    return online, {lines[0]: cgroup for part in parts if (cgroup := _cgroup(lines := part.splitlines()))}


def _cgroup(lines: list[str]) -> Cgroup | None:
    said = dict(line.partition(" ")[::2] for line in lines[1:3])
    allowed = [line.partition(":")[2] for line in lines if line.startswith("Cpus_allowed_list:")]
    if not allowed:
        return None
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    return Cgroup(
        CPUSet.parse(said.get("written", "")),
        CPUSet.parse(said.get("cpus", "")),
        frozenset(map(CPUSet.parse, allowed)),
        env,
    )


def unseen(seen: Collection[str], known: Iterable[pb.Container], pods: Iterable[Manifest], node: str) -> Iterator[str]:
    """The containers that run, by the runtime or by what the API tells of the node's pods, and are not `seen`."""
    for container in known:
        if container.state == pb.CONTAINER_RUNNING and container.id not in seen:
            yield f"{_title(container.labels)} (by the runtime)"
    for pod in pods:
        if pod["spec"].get("nodeName") == node:
            status = pod.get("status", {})
            for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
                if "running" in one["state"] and one["containerID"].removeprefix("containerd://") not in seen:
                    yield f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{one['name']} (by the API)"


def _title(labels: Mapping[str, str]) -> str:
    pod = f"{labels['io.kubernetes.pod.namespace']}/{labels['io.kubernetes.pod.name']}"
    return f"{pod}/{labels['io.kubernetes.container.name']}"


def _running(
    cri: Cri,
    known: Iterable[pb.Container],
    cgroups: Mapping[str, Cgroup],
    wanted: Mapping[tuple[str, str], frozenset[str]],
) -> Iterator[Running]:
    for container in known:
        if not (cgroup := cgroups.get(container.id)):
            continue
        labels = container.labels
        pod_uid, name = labels["io.kubernetes.pod.uid"], labels["io.kubernetes.container.name"]
        try:
            book = runtime_cpuset(container_info(cri, container.id))
        except CriError:
            continue  # it has ended meanwhile
        yield Running(
            id=container.id,
            pod_uid=pod_uid,
            name=name,
            title=_title(labels),
            written=cgroup.written,
            cpus=cgroup.cpus,
            allowed=cgroup.allowed,
            book=book,
            given={
                key.removeprefix(CPUSET_ENV): CPUSet.parse(value)
                for key, value in cgroup.env.items()
                if key.startswith(CPUSET_ENV)
            },
            proofs={
                key.removeprefix(PREPARATION_ENV): value
                for key, value in cgroup.env.items()
                if key.startswith(PREPARATION_ENV)
            },
            wants=wanted.get((pod_uid, name)),
        )


def runtime_cpuset(info: Manifest) -> CPUSet:
    """The cpuset that the runtime has noted for a container; empty for none."""
    linux = info.get("runtimeSpec", {}).get("linux", {})
    return CPUSet.parse(linux.get("resources", {}).get("cpu", {}).get("cpus", ""))


def claims_of_containers(
    pods: Iterable[Manifest], claims: Mapping[tuple[str, str], Manifest]
) -> dict[tuple[str, str], frozenset[str]]:
    """The UIDs of the CPU claims that each container is to have, by its pod's UID and its name."""
    found = {}
    for pod in pods:
        spec, status, metadata = pod["spec"], pod.get("status", {}), pod["metadata"]
        names = {claim["name"]: claim.get("resourceClaimName") for claim in spec.get("resourceClaims", ())}
        names.update({one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses", ())})
        extended = status.get("extendedResourceClaimStatus", {})
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            asked = {names.get(claim["name"]) for claim in container.get("resources", {}).get("claims", ())}
            if any(one["containerName"] == container["name"] for one in extended.get("requestMappings", ())):
                asked.add(extended["resourceClaimName"])
            objects = (claims.get((metadata["namespace"], name)) for name in asked if name)
            found[metadata["uid"], container["name"]] = frozenset(
                claim["metadata"]["uid"] for claim in objects if claim and any(_results(claim))
            )
    return found


def _results(claim: Manifest) -> Iterator[Manifest]:
    devices = (claim.get("status", {}).get("allocation") or {}).get("devices", {})
    return (result for result in devices.get("results", ()) if result["driver"] == DRIVER)


def allocations(claims: Iterable[Manifest], pool: str) -> Iterator[tuple[str, Allocated]]:
    """The claims that have CPUs of this node by the API, by UID."""
    for claim in claims:
        results = tuple(
            (result["device"], int(result.get("consumedCapacity", {}).get(CAPACITY, "1")))
            for result in _results(claim)
            if result["pool"] == pool
        )
        if results:
            metadata = claim["metadata"]
            yield metadata["uid"], Allocated(f"{metadata['namespace']}/{metadata['name']}", results)


def offered(slices: Iterable[Manifest], node: str) -> dict[str, int]:
    """CPUs of each device that the node's slices of the newest generation publish."""
    ours = [one["spec"] for one in slices if one["spec"]["driver"] == DRIVER and one["spec"].get("nodeName") == node]
    newest = max((spec["pool"]["generation"] for spec in ours), default=0)
    return {
        device["name"]: int(device["capacity"][CAPACITY]["value"]) if device.get("capacity") else 1
        for spec in ours
        if spec["pool"]["generation"] == newest
        for device in spec.get("devices", ())
    }


def kubelet_claims(raw: bytes) -> Iterator[tuple[str, bool]]:
    """UIDs of the CPU claims in the kubelet's own checkpoint (pkg/kubelet/cm/dra/state), whose data is JSON in JSON,
    and whether it has got devices of them."""
    if raw:
        for entry in json.loads(json.loads(raw)["Data"])["ClaimInfoStateList"] or ():
            if DRIVER in entry["DriverState"]:
                yield entry["ClaimUID"], bool(entry["DriverState"][DRIVER].get("Devices"))


def metadata_claims(files: Mapping[str, bytes]) -> Iterator[str]:
    """UIDs of the claims that have metadata files, by what the files say."""
    for name, content in files.items():
        if name.startswith(_METADATA) and name.endswith(".json"):
            yield json.JSONDecoder().raw_decode(content.decode())[0]["metadata"]["uid"]


def mounted_claims(files: Iterable[str]) -> Iterator[str]:
    """UIDs of the claims whose metadata a CDI spec mounts, by the specs' names."""
    prefix = f"{_CDI}/{SPEC_PREFIX}"
    return (name.removeprefix(prefix).partition("_")[0] for name in files if name.startswith(prefix))
