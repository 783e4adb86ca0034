"""Which commands a project allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandyard.platform.domain.projects.patterns import compiled
from sandyard.platform.domain.sandboxes.model import CommandRefusedError


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    """Patterns are searched for in the whole command. `deny` wins; a non-empty `allow` refuses all that it does not know.

    It keeps honest agents on the path, and is no wall: a shell can say the same thing in too many ways. Walls are the
    sandbox and its network policy."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: dict[str, Any]) -> CommandPolicy:
        """From a project's settings."""
        policy = settings.get("commandPolicy") or {}
        return cls(_strings(policy.get("allow")), _strings(policy.get("deny")))

    def check(self, command: str) -> None:
        """CommandRefusedError says which rule it was."""
        for pattern in self.deny:
            if compiled(pattern).search(command):
                raise CommandRefusedError(f"The project's policy denies this command: it matches {pattern!r}.")
        if self.allow and not any(compiled(item).search(command) for item in self.allow):
            raise CommandRefusedError(
                "The project's policy allows only certain commands, and this is none of them: "
                + ", ".join(repr(item) for item in self.allow[:10])
            )


def _strings(value: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(value or ())
