"""Times of the hooks through the Go library, as the runtime sees them."""

from __future__ import annotations

import time

from nri_cpu.checkpoint.model import ClaimRecord
from tests.bench.sides import Running, claim
from tests.nri_runtime.lines import Message, container, pod

# Between Prepare and CreateContainer the kubelet pulls an image or at least starts a sandbox; nothing here waits for
# more than the plugin's own look at the new checkpoint. Seconds.
_BETWEEN = 0.01


class WrongAnswerError(Exception):
    """A plugin did not do what is being timed, so the time means nothing."""


def shared(running: Running, cycles: int) -> dict[str, list[float]]:
    """Milliseconds of each CreateContainer and StopContainer of shared containers, by event."""
    result = running.runtime.send("bench", cycle="shared", n=cycles, limit=120).ok().result
    if result["updates"]["CreateContainer"] != [0, 0] or not all(result["cpus"]):
        raise WrongAnswerError(f"{running.side.name}: shared containers: {result['updates']}, CPUs {result['cpus']}")
    return {op: [ns / 1e6 for ns in result["latency"][op]] for op in ("CreateContainer", "StopContainer")}


def first_of_a_claim(running: Running, cycles: int, updates: int) -> list[float]:
    """Milliseconds of CreateContainer of the first container of a claim that was prepared just before.

    The claim before it is unprepared at the same time, so that the pool is as large as ever; either way each shared
    container must be updated, and that is asserted.
    """
    times = []
    for number in range(cycles):
        fresh = claim(number)
        running.side.prepare([fresh])
        time.sleep(_BETWEEN)
        created = running.runtime.create(_pod(number), _claimed(fresh, number), brief=True).ok()
        if created.n_updates != updates or created.cpus != str(fresh.cpus):
            raise WrongAnswerError(
                f"{running.side.name}: a claim's first container got CPUs {created.cpus} and {created.n_updates} "
                f"updates, not {fresh.cpus} and {updates}"
            )
        times.append(created.elapsed * 1e3)
        _end(running, number)
    return times


def restarted(running: Running, cycles: int) -> list[float]:
    """Milliseconds of CreateContainer when a claim's container is made again after a crash."""
    number = 0
    fresh = claim(number)
    running.side.prepare([fresh])
    running.runtime.run(_pod(number), _claimed(fresh, number))
    result = running.runtime.send("bench", cycle="restart", n=cycles, container=_id(number), limit=120).ok().result
    if result["updates"]["CreateContainer"] != [0, 0] or set(result["cpus"]) != {str(fresh.cpus)}:
        raise WrongAnswerError(f"{running.side.name}: restarts: {result['updates']}, CPUs {result['cpus']}")
    return [ns / 1e6 for ns in result["latency"]["CreateContainer"]]


def _pod(number: int) -> Message:
    return pod(f"claimed-{number}")


def _id(number: int) -> str:
    return f"claimed-container-{number}"


def _claimed(record: ClaimRecord, number: int) -> Message:
    """A container as a kubelet makes one, with what the claim's CDI spec adds to its env."""
    env = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", f"HOSTNAME=claimed-{number}"]
    env += [f"SERVICE_{i}_PORT_443_TCP_ADDR=10.96.0.{i}" for i in range(12)]
    env += [f"DRA_CPUSET_{record.uid}={record.cpus}", f"NRI_CPU_PREPARATION_{record.uid}={record.preparation}"]
    linux = {"cgroupsPath": f"kubepods-pod{number}.slice:cri-containerd:{number}", "resources": {"cpu": {}}}
    return container("app", id_=_id(number), env=env, linux=linux, args=["/pause"])


def _end(running: Running, number: int) -> None:
    runtime = running.runtime
    for op in ("PostCreateContainer", "StartContainer", "StopContainer", "RemoveContainer"):
        runtime.send(op, container=_id(number)).ok()
    for op in ("StopPodSandbox", "RemovePodSandbox"):
        runtime.send(op, pod=f"claimed-{number}").ok()
