"""What NRI's messages say of containers and pods, as the policy wants to know it. Tolerant: a runtime may leave out
anything, above all the pod of a container that is going away."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from nri_cpu.checkpoint.cdi import CPUSET_ENV, PREPARATION_ENV
from nri_cpu.cpuset import EMPTY, CPUSet, CPUSetError
from nri_cpu.nri.hooks import container_name
from nri_cpu.nri.nri_pb2 import Container, PodSandbox
from nri_cpu.policy.state import Facts

_PREFIXES = (CPUSET_ENV, PREPARATION_ENV)
_POD_UID = "io.kubernetes.pod.uid"


def facts(pod: PodSandbox, container: Container) -> Facts:
    """The container's facts; of its env only what names claims, since the rest is large and may be secret."""
    linux = container.linux
    devices = container.CDI_devices
    names = (
        container.name or container_name(container),
        pod.uid or pod.id or container.labels.get(_POD_UID, "") or container.pod_sandbox_id,
        pod.namespace or container.labels.get("io.kubernetes.pod.namespace", ""),
        pod.name or container.labels.get("io.kubernetes.pod.name", ""),
        linux.cgroups_path,
    )
    name, uid, namespace, pod_name, cgroup = names if "".join(names).isprintable() else map(_shown, names)
    return Facts(
        container.id,
        name,
        uid,
        container.pod_sandbox_id or pod.id,
        namespace,
        pod_name,
        _claim_env(container.env),
        cpus(linux.resources.cpu.cpus),
        cgroup,
        container.created_at,
        tuple([device.name for device in devices]) if devices else (),
    )


def _claim_env(env: Sequence[str]) -> tuple[str, ...]:
    """The entries that name claims. Most containers have none, which one look at the whole tells fastest."""
    text = "\0".join(env)
    if CPUSET_ENV not in text and PREPARATION_ENV not in text:
        return ()
    return tuple([entry for entry in env if entry.startswith(_PREFIXES)])


def pod_uid(pod: PodSandbox) -> str:
    """The pod's UID; one that Kubernetes knows nothing of (crictl) has its sandbox's id."""
    return _shown(pod.uid or pod.id)


def _shown(name: str) -> str:
    """A name as it may stand in a log line and in owners.json. Kubernetes' own have nothing else; other clients of the
    runtime may write what they like."""
    return name if name.isprintable() else name.encode("unicode_escape").decode()


@lru_cache(maxsize=128)
def cpus(text: str) -> CPUSet:
    """A cpuset as a runtime gives it back: whatever it was once given. What can't be read is no cpuset that we sent,
    and is read as none, so that it is set right."""
    try:
        return CPUSet.parse(text)
    except CPUSetError:
        return EMPTY
