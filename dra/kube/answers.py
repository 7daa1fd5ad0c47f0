"""What the API server's answers say: JSON objects, and errors with the server's words and a way out. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from dra.claims import printable
from dra.slices.api import ApiError, ConflictError, ExpiredError, ForbiddenError, InvalidError, NotFoundError
from dra.slices.objects import Manifest

# Longer than any of the API server's; what asks for more waits this long.
_LONGEST_WAIT = 3600

_ERRORS: dict[int, type[ApiError]] = {
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    422: InvalidError,
}

# What it means or what to do, where the one who asked does not know better.
_HINTS: dict[int, str] = {
    409: "it was changed meanwhile, or the name is taken",
    410: "that is too old; list again",
    422: "the API server's validation refuses it",
    429: "the API server has too much to do",
    503: "the API server is not ready",
    504: "the API server waited too long, for etcd or a webhook",
}


class AnswerError(Exception):
    """An answer that is not what was asked for; the message goes on after "answered"."""


def parsed(body: bytes) -> object:
    """The JSON of an answer. Raises AnswerError."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise AnswerError(f"what is no JSON: {body[:60]!r}") from None


def refusal(what: str, status: int, body: bytes, hints: Mapping[int, str]) -> str:
    """One line: `what` was asked, the status, what to do, and the server's words."""
    hint = hints.get(status) or _HINTS.get(status) or ("redirects are not followed" if 300 <= status < 400 else "")
    return f"{what} answered {status}{f' ({hint})' if hint else ''}: {_words(body)}"


def error_of(
    what: str, status: int, body: bytes, retry_after: str | None = None, hints: Mapping[int, str] | None = None
) -> ApiError:
    """The error that a status is. How long to wait is in the header, or in the Status object."""
    kind = _ERRORS.get(status, ApiError)
    return kind(refusal(what, status, body, hints or {}), seconds_to_wait(retry_after, body))


def object_of(value: object, where: str) -> Manifest:
    """An object that has the names by which it is found. Raises AnswerError with the path of what it has not."""
    metadata = mapping(mapping(value, where).get("metadata"), f"{where}.metadata")
    for key in ("name", "uid", "resourceVersion"):
        text(metadata, key, f"{where}.metadata")
    assert isinstance(value, dict)
    return value


def mapping(value: object, where: str) -> Manifest:
    if not isinstance(value, dict):
        raise AnswerError(f"{where} that is {_kind(value)}, no object")
    return value


def text(section: Manifest, key: str, where: str) -> str:
    value = section.get(key)
    if not isinstance(value, str) or not value:
        raise AnswerError(
            f"{where}.{key} that is {_kind(value)}, no string" if value != "" else f"an empty {where}.{key}"
        )
    return value


def _kind(value: object) -> str:
    return "missing or null" if value is None else f"a {type(value).__name__}"


def _status(body: bytes) -> Manifest:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _words(body: bytes) -> str:
    message = _status(body).get("message")
    words = message if isinstance(message, str) else body[:100].decode("utf-8", "replace")
    return printable(" ".join(words.split()), 500)


def seconds_to_wait(retry_after: str | None, body: bytes) -> float | None:
    """What the server asks for, in the header Retry-After or in its Status object; None where it does not."""
    if retry_after is not None and re.fullmatch(r"[0-9]{1,9}", retry_after.strip()):
        return float(min(int(retry_after), _LONGEST_WAIT))
    details = _status(body).get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    if isinstance(seconds, int) and seconds > 0:
        return float(min(seconds, _LONGEST_WAIT))
    return None
