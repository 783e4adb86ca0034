"""Which commands a project allows."""

from __future__ import annotations

import pytest

from sandyard.platform.domain.sandboxes.command_policy import CommandPolicy
from sandyard.platform.domain.sandboxes.model import CommandRefusedError
from tests.unit.platform.domain.projects.pattern_examples import COMPLEX


def test_without_a_policy_everything_is_allowed() -> None:
    CommandPolicy.from_settings({}).check("rm -rf /")


def test_names_pattern_that_denies() -> None:
    policy = CommandPolicy.from_settings({"commandPolicy": {"deny": [r"\bgit\s+push\b"]}})
    policy.check("git status")
    with pytest.raises(CommandRefusedError, match="git"):
        policy.check("cd x && git  push origin")


def test_deny_overrides_allow_list() -> None:
    policy = CommandPolicy(allow=(r"^pytest\b", r"^make "), deny=("--pdb",))
    policy.check("pytest -q")
    for command in ("ls", "pytest --pdb"):
        with pytest.raises(CommandRefusedError):
            policy.check(command)


def test_patterns_take_linear_time() -> None:
    """A backtracking engine would never finish."""
    CommandPolicy(deny=("(a+)+$", ".*.*.*.*x$")).check("a" * 100_000 + "b")


def test_rejects_command_that_cannot_be_checked() -> None:
    """Padding must not get a command past a pattern, and a pattern stored under other limits must not allow everything."""
    for policy, command in (
        (CommandPolicy(deny=("sudo",)), "sudo id #" + "x" * 990_000),
        (CommandPolicy(deny=(COMPLEX,)), "ls"),
    ):
        with pytest.raises(CommandRefusedError, match="could not be checked against"):
            policy.check(command)
    with pytest.raises(CommandRefusedError, match=r"only certain commands.*could not be checked against"):
        CommandPolicy(allow=(COMPLEX,)).check("ls")
    CommandPolicy(allow=(COMPLEX, "^ls$")).check("ls")
    CommandPolicy().check("x" * 990_000)
