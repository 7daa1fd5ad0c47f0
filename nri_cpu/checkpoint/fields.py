"""Takes the known fields out of a JSON object one by one, checking their types; what is left over is unknown."""

from __future__ import annotations

from typing import cast

from nri_cpu.checkpoint.errors import Corrupt
from nri_cpu.cpuset import CPUSet, CPUSetError, quote

_LARGEST = 2**31 - 1
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}


class Fields:
    """The fields of `value`, which is consumed; each method raises Corrupt naming the place below `where`."""

    __slots__ = ("_left", "where")

    def __init__(self, value: object, where: str) -> None:
        self._left = as_object(value, where)
        self.where = where

    def place(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def _take(self, key: str) -> object:
        try:
            return self._left.pop(key)
        except KeyError:
            raise Corrupt(f"{self.place(key)} is missing") from None

    def text(self, key: str) -> str:
        """Text that can be shown: a control character in a name would forge log lines, a lone surrogate breaks them."""
        value = self._take(key)
        if isinstance(value, str) and value.isprintable():
            return value
        return as_text(value, self.place(key))  # which refuses it; the place is worth its time only now

    def optional_text(self, key: str) -> str | None:
        """As `text`; None when the field is absent or null."""
        if self._left.get(key) is None:
            self._left.pop(key, None)
            return None
        return self.text(key)

    def secret(self, key: str) -> str:
        """Text of any form; nothing of it gets into a message."""
        value = self._take(key)
        if not isinstance(value, str):
            raise Corrupt(f"{self.place(key)} is {kind(value)} where text belongs")
        return value

    def integer(self, key: str) -> int:
        value = self._take(key)
        if type(value) is not int:  # True is an int too
            raise Corrupt(f"{self.place(key)} is {kind(value)} where an integer belongs")
        if abs(value) > _LARGEST:
            raise Corrupt(f"{self.place(key)} is out of range")
        return value

    def cpus(self, key: str) -> CPUSet:
        text = self.text(key)
        try:
            return CPUSet.parse(text)
        except CPUSetError as error:
            raise Corrupt(f"{self.place(key)}: {error}") from None

    def items(self, key: str) -> list[object]:
        value = self._take(key)
        if not isinstance(value, list):
            raise Corrupt(f"{self.place(key)} is {kind(value)} where a list belongs")
        return value

    def nested(self, key: str) -> dict[str, object]:
        return as_object(self._take(key), self.place(key))

    def rest(self) -> dict[str, object]:
        """The fields that nobody took."""
        return self._left


def as_object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Corrupt(f"{where or 'the whole'} is {kind(value)} where an object belongs")
    return cast("dict[str, object]", value)


def as_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise Corrupt(f"{where} is {kind(value)} where text belongs")
    if not value.isprintable():
        raise Corrupt(f"{where} has characters that can't be shown: {quote(value)}")
    return value


def kind(value: object) -> str:
    """What JSON calls the type of `value`."""
    return _KINDS.get(type(value), "a number")
