"""Pods and containers through CRI, set up as the kubelet does it: labels, log paths, cgroup parents by QoS class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import grpc

from hack.node.container_image import NAME as IMAGE
from hack.node.cri import cri_pb2 as pb
from hack.node.errors import NodeError
from hack.wait import wait_until

QoS = Literal["guaranteed", "burstable", "besteffort"]

# Under emulation on a busy machine a pod may take many seconds.
_LIMIT = 120.0

# After a restart of the runtime the next call should not wait for gRPC's own second.
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]


class CriError(NodeError):
    """The runtime refused a call: `code` is gRPC's name of the status, `text` is the runtime's own, unchanged."""

    def __init__(self, method: str, code: str, text: str) -> None:
        super().__init__(f"{method}: {code}: {text}")
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod as the runtime knows it."""

    id: str
    name: str
    uid: str
    namespace: str
    qos: QoS
    config: pb.PodSandboxConfig = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Container:
    """A container that was created; `log_path` is inside the box."""

    id: str
    name: str
    sandbox: Sandbox
    log_path: str


class Cri:
    """A client of the CRI socket at `path`; `read` gives a file of the machine that the runtime is on, for logs.

    Every call raises CriError.
    """

    def __init__(self, path: Path, read: Callable[[str], bytes] | None = None) -> None:
        options: list[tuple[str, Any]] = [("grpc.default_authority", "localhost"), *_RECONNECT]
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)
        self._read = read

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Any, reply: Any, timeout: float = _LIMIT) -> Any:
        """Any method of the runtime service: its name, the request, the class of the reply."""
        return self._call(f"/runtime.v1.RuntimeService/{method}", request, reply, timeout)

    def _call(self, path: str, request: Any, reply: Any, timeout: float) -> Any:
        stub = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
        )
        try:
            return stub(request, timeout=timeout)
        except grpc.RpcError as error:
            raise CriError(path.rsplit("/", 1)[1], error.code().name, error.details() or "") from None

    def version(self, timeout: float = 5) -> tuple[str, str]:
        """Name and version of the runtime."""
        got = self.call("Version", pb.VersionRequest(), pb.VersionResponse, timeout)
        return got.runtime_name, got.runtime_version

    def wait_until_ready(self, limit: float = 60) -> None:
        """Wait until the runtime answers; it refuses while it starts."""

        def answers() -> bool:
            try:
                return bool(self.version())
            except CriError:
                return False

        wait_until("the runtime's answer to CRI", answers, limit)

    def images(self) -> list[str]:
        """The tags of all images."""
        got = self._call("/runtime.v1.ImageService/ListImages", pb.ListImagesRequest(), pb.ListImagesResponse, _LIMIT)
        return [tag for image in got.images for tag in image.repo_tags]

    def sandbox(
        self,
        name: str,
        *,
        uid: str = "",
        namespace: str = "default",
        qos: QoS = "burstable",
        annotations: Mapping[str, str] | None = None,
        handler: str = "",
    ) -> Sandbox:
        """Run a pod's sandbox on the host's network. Without `uid` the name is the UID; `handler` is "" (crun) or
        runc."""
        uid = uid or name
        parent = f"/kubepods/pod{uid}" if qos == "guaranteed" else f"/kubepods/{qos}/pod{uid}"
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace=namespace),
            log_directory=f"/var/log/pods/{namespace}_{name}_{uid}",
            labels=_labels(name, uid, namespace),
            annotations=annotations or {},
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=parent, security_context=pb.LinuxSandboxSecurityContext(namespace_options=_namespaces())
            ),
        )
        got = self.call(
            "RunPodSandbox", pb.RunPodSandboxRequest(config=config, runtime_handler=handler), pb.RunPodSandboxResponse
        )
        return Sandbox(got.pod_sandbox_id, name, uid, namespace, qos, config)

    def sandboxes(self) -> Sequence[pb.PodSandbox]:
        """All sandboxes, in any state."""
        got = self.call("ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse)
        return list(got.items)

    def stop_sandbox(self, sandbox: Sandbox | str) -> None:
        """Stop a pod with all its containers."""
        self.call("StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=_id(sandbox)), pb.StopPodSandboxResponse)

    def remove_sandbox(self, sandbox: Sandbox | str) -> None:
        """Stop a pod and remove it with all its containers."""
        self.stop_sandbox(sandbox)
        self.call(
            "RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=_id(sandbox)), pb.RemovePodSandboxResponse
        )

    def container(
        self,
        sandbox: Sandbox,
        name: str,
        command: Sequence[str] = ("/bin/first",),
        *,
        env: Mapping[str, str] | None = None,
        cdi_devices: Sequence[str] = (),
        resources: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] | None = None,
        attempt: int = 0,
        start: bool = True,
    ) -> Container:
        """Create a container and start it. `attempt` tells a re-created container from the one before, as the kubelet
        does.

        The default program writes the /proc/self/status of its first instruction to its log, then runs until killed.
        `resources` are fields of LinuxContainerResources; without any the container has 100 CPU shares.
        """
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=IMAGE),
            command=command,
            envs=[pb.KeyValue(key=key, value=value) for key, value in (env or {}).items()],
            labels={**_labels(sandbox.name, sandbox.uid, sandbox.namespace), "io.kubernetes.container.name": name},
            annotations=annotations or {},
            log_path=f"{name}/{attempt}.log",
            CDI_devices=[pb.CDIDevice(name=device) for device in cdi_devices],
            linux=pb.LinuxContainerConfig(
                resources=pb.LinuxContainerResources(**(resources or {"cpu_shares": 100})),
                security_context=pb.LinuxContainerSecurityContext(namespace_options=_namespaces()),
            ),
        )
        request = pb.CreateContainerRequest(pod_sandbox_id=sandbox.id, config=config, sandbox_config=sandbox.config)
        got = self.call("CreateContainer", request, pb.CreateContainerResponse)
        made = Container(got.container_id, name, sandbox, f"{sandbox.config.log_directory}/{config.log_path}")
        if start:
            self.start(made)
        return made

    def containers(self) -> Sequence[pb.Container]:
        """All containers, in any state."""
        return list(self.call("ListContainers", pb.ListContainersRequest(), pb.ListContainersResponse).containers)

    def start(self, container: Container | str) -> None:
        self.call("StartContainer", pb.StartContainerRequest(container_id=_id(container)), pb.StartContainerResponse)

    def stop(self, container: Container | str, grace: int = 0) -> None:
        """Stop a container; `grace` is the seconds from SIGTERM to SIGKILL."""
        request = pb.StopContainerRequest(container_id=_id(container), timeout=grace)
        self.call("StopContainer", request, pb.StopContainerResponse)

    def remove(self, container: Container | str) -> None:
        """Remove a container; one that runs is killed first."""
        self.call("RemoveContainer", pb.RemoveContainerRequest(container_id=_id(container)), pb.RemoveContainerResponse)

    def update(self, container: Container | str, **resources: Any) -> None:
        """Update a running container's resources: fields of LinuxContainerResources."""
        request = pb.UpdateContainerResourcesRequest(
            container_id=_id(container), linux=pb.LinuxContainerResources(**resources)
        )
        self.call("UpdateContainerResources", request, pb.UpdateContainerResourcesResponse)

    def exec(self, container: Container | str, *command: str, timeout: int = 30) -> tuple[int, str, str]:
        """Run a command in a container: its exit code, standard output and standard error."""
        request = pb.ExecSyncRequest(container_id=_id(container), cmd=command, timeout=timeout)
        got = self.call("ExecSync", request, pb.ExecSyncResponse)
        return got.exit_code, got.stdout.decode(), got.stderr.decode()

    def status(self, container: Container | str) -> pb.ContainerStatus:
        return self._status(container).status

    def pid(self, container: Container | str) -> int:
        """The pid of the container's first process, as the machine sees it; raises CriError when it does not run."""
        pid = int(json.loads(self._status(container).info["info"])["pid"])
        if not pid:
            raise CriError("ContainerStatus", "NOT_FOUND", f"container {_id(container)} has no process")
        return pid

    def _status(self, container: Container | str) -> pb.ContainerStatusResponse:
        request = pb.ContainerStatusRequest(container_id=_id(container), verbose=True)
        got: pb.ContainerStatusResponse = self.call("ContainerStatus", request, pb.ContainerStatusResponse)
        return got

    def logs(self, container: Container) -> str:
        """What the container wrote so far, standard output and standard error together."""
        if not self._read:
            raise NodeError("this CRI client was not told how to read the machine's files")
        return log_text(self._read(container.log_path))


def log_text(raw: bytes) -> str:
    """The text in a CRI log: each line is time, stream, tag (P: the line goes on) and text."""
    parts: list[str] = []
    for line in raw.decode(errors="replace").splitlines():
        _time, _stream, tag, text = line.split(" ", 3)
        parts.append(text if tag.startswith("P") else f"{text}\n")
    return "".join(parts)


def _id(thing: Sandbox | Container | str) -> str:
    return thing if isinstance(thing, str) else thing.id


def _labels(name: str, uid: str, namespace: str) -> dict[str, str]:
    return {"io.kubernetes.pod.name": name, "io.kubernetes.pod.uid": uid, "io.kubernetes.pod.namespace": namespace}


def _namespaces() -> pb.NamespaceOption:
    return pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER, ipc=pb.POD)
