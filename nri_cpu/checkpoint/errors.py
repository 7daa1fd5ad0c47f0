"""The errors of the checkpoint package, all of them:

    CheckpointError(ValueError)
      Corrupt                 the bytes are no file of ours, or say something that can't be
      TooNew                  written by a version whose files this one can't read
      CheckpointMissing       there is no file; never the same as an empty one
      CheckpointUnreadable    the system refuses to read it, or it is no regular file
      CheckpointUnwritable    the system refuses to write it, or the content is such that we would not read it back

A message names the place inside the file; the layer that knows the path puts it in front. No message ever holds a
preparation: whoever knows one can use its claim.
"""

# ruff: noqa: N818  # the names say what was found; that they are errors is said by their base
from __future__ import annotations


class CheckpointError(ValueError):
    """A file of ours can't be read or written; the message says which, where and what to do.

    `repair`: what to do where that is for whoever keeps the file only; `fault`: the message without it.
    """

    def __init__(self, fault: str, repair: str = "") -> None:
        super().__init__(f"{fault}; {repair}" if repair else fault)
        self.fault = fault
        self.repair = repair


class Corrupt(CheckpointError):
    """The bytes are no file of ours, or say something that can't be."""


class TooNew(CheckpointError):
    """Written by a version whose files this one can't read."""


class CheckpointMissing(CheckpointError):
    """There is no file."""


class CheckpointUnreadable(CheckpointError):
    """The system refuses to read the file, or it is no regular file."""


class CheckpointUnwritable(CheckpointError):
    """The file can't be written."""
