"""A string that logs, tracebacks and debuggers do not print by accident."""

from __future__ import annotations

import hmac
from typing import Any, NoReturn


class Secret:
    """Holds a secret string. `repr`, `str` and `format` return `***`; only `reveal` returns the value.

    Comparison takes constant time. It can't be pickled or converted to JSON: code that stores a secret must call `reveal` explicitly.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def matches(self, candidate: str | None) -> bool:
        """Return whether `candidate` is this secret, in constant time."""
        return candidate is not None and hmac.compare_digest(self._value.encode(), candidate.encode(errors="replace"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._value)

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be serialised: use reveal()")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self
