"""Command policy of a project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandyard.platform.domain.projects.patterns import search_patterns
from sandyard.platform.domain.sandboxes.model import CommandRefusedError


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    """The commands that a project allows.

    Patterns are searched in the whole command. `deny` takes precedence; a non-empty `allow` rejects everything that it
    does not match. The policy guides cooperative agents and is no security boundary, because a shell can express the
    same command in too many ways. The boundaries are the sandbox and its network policy.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> CommandPolicy:
        """Read the policy from a project's settings."""
        policy = settings.get("commandPolicy") or {}
        return cls(_strings(policy.get("allow")), _strings(policy.get("deny")))

    @property
    def is_empty(self) -> bool:
        return not (self.allow or self.deny)

    def check(self, command: str) -> None:
        """Raise CommandRefusedError with the rule that rejects the command, also if the command could not be checked.

        May take long: call it with `run_in_thread`.
        """
        denied = search_patterns(self.deny, [command])
        if denied.match is not None:
            raise CommandRefusedError(f"The project's policy denies this command: it matches {denied.match!r}.")
        if denied.unchecked is not None:
            raise CommandRefusedError(f"The project's policy denies this command: {denied.unchecked}")
        if not self.allow:
            return
        allowed = search_patterns(self.allow, [command])
        if allowed.match is None:
            why = "" if allowed.unchecked is None else f". Also, {allowed.unchecked}"
            raise CommandRefusedError(
                "The project's policy allows only certain commands, and this is not one of them: "
                + ", ".join(repr(item) for item in self.allow[:10])
                + why
            )


def _strings(value: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(value or ())
