"""A string that no log, traceback or debugger prints by accident."""

from __future__ import annotations

import hmac
from typing import Any, NoReturn


class Secret:
    """Holds a secret string. `repr`, `str` and `format` give `***`; only `reveal` gives the value.

    Comparison is in constant time. Not picklable and not JSON-able on purpose: whoever stores a secret says so with
    `reveal`.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def matches(self, candidate: str | None) -> bool:
        """True when `candidate` is this secret; takes as long for a wrong one as for the right one."""
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
        raise TypeError("a Secret is not serialised by accident: use reveal()")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self
