"""What can go wrong in the life of a plugin.

    Exception
      HookError           a hook refuses: its text is the answer (hooks.py)
      SessionError        this connection is of no more use; the next one may be
      UnreachableError    there is no connection now; the next try may make one
      ValueError
        IdentityError     a name or an index that no runtime takes
        EndpointError     a way to the runtime that can never work

What the peer does wrong on the wire is nri_cpu.ttrpc's ProtocolError.
"""

from __future__ import annotations


class SessionError(Exception):
    """The connection must be closed; the text says why, for the log."""


class UnreachableError(Exception):
    """No connection to the runtime now; the text says why and what to look at."""


class IdentityError(ValueError):
    """The plugin's name or index breaks the runtime's rules (NRI specification, RegisterPlugin)."""


class EndpointError(ValueError):
    """A socket path or a file descriptor that no retry can make right; the text names the way out."""
