"""One scenario on a cluster of one node: its namespace, the product on the node, what the API says and what is true.

Waiting is for conditions, with a limit; nothing here knows how long anything takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from hack.kube.node import KUBECONFIG
from hack.node.access import Daemon
from hack.node.cri.client import log_text
from hack.product import Claim
from hack.wait import wait_until
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import CPUSet
from tests.cluster.facts import Facts
from tests.cluster.invariants import Known, check
from tests.cluster.manifests import Manifest
from tests.cluster.observe import offered
from tests.cluster.stage import Stage

T = TypeVar("T")

# Of one wait. Seconds; on a machine that is busy with other things.
LIMIT = 180.0
_PAUSE = 0.2
_AT_ONCE = 3


class Scenario:
    """Objects of one namespace, and the node they are on. Methods that wait raise TimeoutError, the others ApiError."""

    def __init__(self, stage: Stage, namespace: str) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.api = stage.cluster.api
        self.node = stage.node
        self.box = stage.node.box
        self.product = stage.product
        self.namespace = namespace
        self._facts: tuple[Facts, ...] = ()
        self._classes: list[str] = []
        self._prepared: list[Claim] = []
        self._drivers: dict[str, Daemon] = {}
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    # Objects

    def apply(self, *manifests: Manifest) -> None:
        """Create or change objects; those without a namespace get this one."""
        for manifest in manifests:
            if manifest["kind"] == "DeviceClass":
                self._classes.append(manifest["metadata"]["name"])
            self.api.apply(manifest, self.namespace)

    def run(self, *manifests: Manifest) -> None:
        """Create objects and wait until the pods among them are ready."""
        pods = [manifest for manifest in manifests if manifest["kind"] == "Pod"]
        self.apply(*(manifest for manifest in manifests if manifest["kind"] != "Pod"))
        for few in batched(pods, _AT_ONCE):
            self.apply(*few)
            self.ready(*(one["metadata"]["name"] for one in few))

    def ready(self, *pods: str) -> None:
        for name in pods:
            self.pod(name, is_ready)

    def pod(self, name: str, until: Callable[[Manifest], object] = bool) -> Manifest:
        """The pod, as soon as `until` is true of it."""
        try:
            return self.api.wait("Pod", name, until, self.namespace, limit=LIMIT)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; events: {self.events(name)}") from None

    def pods(self, **labels: str) -> Sequence[Manifest]:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        return self.api.list("Pod", self.namespace, labelSelector=selector)

    def events(self, pod: str) -> list[str]:
        """What has been said about a pod: reason and message."""
        found = self.api.list("Event", self.namespace, fieldSelector=f"involvedObject.name={pod}")
        return [f"{event.get('reason')}: {event.get('message')}" for event in found]

    def said(self, pod: str, *words: str) -> str:
        """Wait for an event of the pod that has all these words, and return it."""

        def found() -> str:
            return next((text for text in self.events(pod) if all(word in text for word in words)), "")

        try:
            return wait_until(f"{words} among the events of pod {pod}", found, LIMIT, _PAUSE)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; they are {self.events(pod)}") from None

    def refused(self, pod: str, container: str) -> str:
        """Wait until the runtime refuses to create the container; its words."""

        def waiting(now: Manifest) -> bool:
            return bool(_state(now, container).get("waiting", {}).get("reason") == "CreateContainerError")

        message: str = _state(self.pod(pod, waiting), container)["waiting"]["message"]
        return message

    def delete(self, *pods: str, **options: Any) -> None:
        """Delete pods and wait until they are gone; a few at a time, as the runtime of an emulated machine bears."""
        for few in batched(pods, _AT_ONCE):
            for name in few:
                self.api.delete("Pod", name, self.namespace, **options)
            for name in few:
                self.api.wait_gone("Pod", name, self.namespace, limit=LIMIT)

    def clear(self) -> None:
        """Delete everything that runs or is claimed here, and wait until it is gone; then the namespace, which may
        linger."""
        for name in self._classes:
            self.api.delete("DeviceClass", name)
        for one in self.api.list("Deployment", self.namespace):
            self.api.delete("Deployment", one["metadata"]["name"], self.namespace)
        while pods := self.pods():
            self.delete(*(one["metadata"]["name"] for one in pods))
        for asked in self._prepared:
            self.product.unprepare(asked)  # the kubelet may not know of it
        for one in self.api.list("ResourceClaim", self.namespace):
            name = one["metadata"]["name"]
            self.api.delete("ResourceClaim", name, self.namespace)
            self.api.wait_gone("ResourceClaim", name, self.namespace, limit=LIMIT)
        self._end_drivers()
        self.api.delete("Namespace", self.namespace)

    # The product

    def companion(self, *arguments: str, offers: Mapping[str, int]) -> None:
        """Start dra-cpu anew with other arguments, and wait until it has published these devices with so many CPUs."""
        self.stage.companion(*arguments)
        self.offers(offers)

    def offers(self, devices: Mapping[str, int]) -> None:
        """Wait until these devices are what is published of the node."""
        last: Mapping[str, int] = {}

        def now() -> bool:
            nonlocal last
            last = offered(self.api.list("ResourceSlice"), self.node.name)
            return last == devices

        try:
            wait_until("the devices in the API", now, LIMIT, _PAUSE)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {devices} are wanted, there are {last}") from None

    def other_driver(self, name: str, devices: Sequence[Manifest]) -> None:
        """Start another driver on the node with these devices, and wait until it has published them; ends with the
        scenario.

        It is part of the kubelet's program, and has the kubelet's rights.
        """
        self.box.run("ln -sf kubelet /usr/local/bin/test-driver")
        command = ["test-driver", self.node.name, KUBECONFIG, json.dumps(devices)]
        self._drivers[name] = self.box.daemon("test-driver", command)

        def published() -> bool:
            found = [device for one in self._slices(name) for device in one["spec"]["devices"]]
            return found == list(devices)

        wait_until(f"the devices of driver {name}", published, LIMIT, _PAUSE)

    def _slices(self, driver: str) -> list[Manifest]:
        return [dict(one) for one in self.api.list("ResourceSlice") if one["spec"]["driver"] == driver]

    def _end_drivers(self) -> None:
        """With what they have published: the kubelet takes that away too, half a minute later."""
        for name, daemon in self._drivers.items():
            if daemon.alive():
                daemon.kill()
            for one in self._slices(name):
                self.api.delete("ResourceSlice", one["metadata"]["name"])

    def prepare(self, claim: str, uid: str = "") -> tuple[str, ...]:
        """NodePrepareResources of a claim, as the kubelet would call it; the CDI devices. Raises PrepareError, or
        NodeError without answer."""
        asked = self._asked(claim, uid)
        if asked not in self._prepared:
            self._prepared.append(asked)
        return self.product.prepare(asked)

    def unprepare(self, claim: str, uid: str = "") -> None:
        self.product.unprepare(self._asked(claim, uid))

    def _asked(self, claim: str, uid: str) -> Claim:
        return Claim(claim, "", 0, uid or self.uid(claim), self.namespace)

    # What is true

    def uid(self, claim: str) -> str:
        return str(self.claim(claim)["metadata"]["uid"])

    def claim(self, name: str) -> Manifest:
        return self.api.get("ResourceClaim", name, self.namespace)

    def claim_of(self, pod: str, template: str) -> str:
        """The name of the claim that was made for a pod from a template."""
        statuses = self.pod(pod, lambda now: now["status"].get("resourceClaimStatuses"))["status"][
            "resourceClaimStatuses"
        ]
        return next(str(one["resourceClaimName"]) for one in statuses if one["name"] == template)

    def record(self, claim: str) -> ClaimRecord:
        """The prepared claim by its name; raises LookupError."""
        for record in self.product.checkpoint().claims.values():
            if (record.namespace, record.name) == (self.namespace, claim):
                return record
        raise LookupError(f"claim {self.namespace}/{claim} is not prepared")

    def prepared(self, claim: str) -> bool:
        try:
            return bool(self.record(claim))
        except LookupError:
            return False

    def cpus(self, *claims: str) -> CPUSet:
        """The CPUs of prepared claims by name."""
        return CPUSet.union(self.record(claim).cpus for claim in claims)

    def log(self, pod: str, container: str = "main") -> str:
        """What the container's latest incarnation has written, from the node."""
        now = self.pod(pod)
        directory = f"/var/log/pods/{self.namespace}_{pod}_{now['metadata']['uid']}/{container}"
        restarts = container_status(now, container)["restartCount"]
        return log_text(self.box.read(f"{directory}/{restarts}.log"))

    def first(self, pod: str, container: str = "main") -> CPUSet:
        """Where the container's latest incarnation found that it may run, before it did anything else."""

        def line() -> str:
            lines = self.log(pod, container).splitlines()
            return next((one for one in lines if one.startswith("Cpus_allowed_list:")), "")

        text = wait_until(f"the first words of container {container} of pod {pod}", line, LIMIT, _PAUSE)
        return CPUSet.parse(text.partition(":")[2])

    def container_id(self, pod: str, container: str = "main") -> str:
        """The runtime's id of the running container."""
        status = container_status(self.pod(pod), container)
        return str(status["containerID"]).removeprefix("containerd://")

    def pid(self, pod: str, container: str = "main") -> int:
        """Its first process."""
        with self.box.cri() as cri:
            return cri.pid(self.container_id(pod, container))

    def kill(self, pod: str, container: str = "main") -> None:
        """Kill its first process, and wait until the kubelet has it running again."""
        before = container_status(self.pod(pod), container)["restartCount"]
        self.box.run(["kill", "-9", str(self.pid(pod, container))])
        self.pod(
            pod, lambda now: container_status(now, container)["restartCount"] > before and is_running(now, container)
        )

    def check(self, **options: Collection[str]) -> Facts:
        """All invariants, also against the last check; what is true on the node. `options` are those of Known."""
        self._facts = check(self.cluster, self._facts, Known(**options))
        return self._facts[0]


def is_ready(pod: Manifest) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def is_unschedulable(pod: Manifest) -> bool:
    return condition(pod, "PodScheduled").get("reason") == "Unschedulable"


def condition(pod: Manifest, kind: str) -> Manifest:
    """A condition of the pod; empty when it has not been told."""
    return next((one for one in pod["status"].get("conditions", ()) if one["type"] == kind), {})


def is_running(pod: Manifest, container: str) -> bool:
    return "running" in _state(pod, container)


def has_ended(pod: Manifest, container: str) -> bool:
    return "terminated" in _state(pod, container)


def container_status(pod: Manifest, container: str) -> Manifest:
    """What the kubelet told of a container, init containers included."""
    status = pod["status"]
    known = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return next((one for one in known if one["name"] == container), {"restartCount": 0, "state": {}})


def _state(pod: Manifest, container: str) -> Manifest:
    state: Manifest = container_status(pod, container).get("state", {})
    return state


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items, so many at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))
