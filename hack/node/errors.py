"""What can go wrong with a node in a box.

NodeError
  ToolsMissingError    a program of the host is not there; the message has the command that installs it
  BuildError           image or snapshot could not be made
  QemuError            QEMU refused something, or ended
  ChannelError         the guest did not answer, or what it answered makes no sense
  CommandFailedError   a command in the guest ended with another code than 0
  CriError             the container runtime refused a call (cri/client.py)
"""

from __future__ import annotations


class NodeError(Exception):
    """Something about the box is wrong; the message says what, where and what to do."""


class ToolsMissingError(NodeError):
    """A program that the host needs is not installed and could not be."""


class BuildError(NodeError):
    """The image or the snapshot could not be made."""


class QemuError(NodeError):
    """QEMU refused a command, or is gone."""


class ChannelError(NodeError):
    """The guest's command channel did not answer in time or broke off."""


class CommandFailedError(NodeError):
    """A command in the guest ended with a code other than 0."""

    def __init__(self, command: str, code: int, stdout: bytes, stderr: bytes) -> None:
        said = (stderr or stdout).decode(errors="replace").strip()
        super().__init__(f"in the box, {command!r} ended with {code}: {said[-2000:]}")
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
