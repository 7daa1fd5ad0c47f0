"""What ends a command with exit code 1."""

from __future__ import annotations


class CommandError(Exception):
    """The command can't do what it was asked to; one line that names the thing and the way out."""
