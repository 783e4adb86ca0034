"""Which commands are reliable evidence of a check, and that nothing else of them is published."""

from __future__ import annotations

import pytest

from sandyard.kit.clock import get_time
from sandyard.platform.db.models import Command
from sandyard.platform.domain.forge import description
from sandyard.platform.domain.forge.description import Check
from tests.unit.platform.domain.forge.forge_harness import ForgeHarness


@pytest.mark.parametrize(
    ("line", "code", "check"),
    [
        ("pytest", 0, Check("pytest", 0)),
        ("TOKEN=secret python -m pytest -q tests/secret 2>&1", 1, Check("pytest", 1)),
        ("cd app && npm run test", 0, Check("npm run test", 0)),
        ("cd app && npm run test", 1, None),
        ("ruff check . && mypy src > out.txt", 1, Check("ruff check and mypy", 1)),
        (".venv/bin/ruff check", 0, Check("ruff check", 0)),
        ("make test", 2, Check("make test", 2)),
        ("pytest | tail", 0, None),
        ("pytest || true", 0, None),
        ("pytest; echo done", 0, None),
        ("pytest &", 0, None),
        ("! pytest", 0, None),
        ("echo pytest", 0, None),
        ("pytest --version", 0, None),
        ("grep -r pytest .", 0, None),
        ("echo 'x && pytest'", 0, None),
        ("pytest\ntrue", 0, None),
        ("make deploy", 0, None),
    ],
)
def test_checks_are_recognized_in_command_lines(line: str, code: int, check: Check | None) -> None:
    assert description.parse_check(line, code) == check


async def test_the_last_result_of_a_check_counts(harness: ForgeHarness) -> None:
    commands = [
        ("pytest", 1, "exited"),
        ("mypy", 0, "exited"),
        ("pytest", 0, "exited"),
        ("tox", None, "lost"),
        ("ls", 0, "exited"),
    ]
    async with harness.world.database.transaction() as tx:
        for number, (line, code, status) in enumerate(commands):
            tx.add(
                Command(
                    id=f"cmd_{number}",
                    sandbox_id=harness.sandbox_id,
                    command=line,
                    background=False,
                    timeout_s=1,
                    status=status,
                    exit_code=code,
                    started_at=get_time(harness.world.clock),
                )
            )
    assert await description.list_checks(harness.world.database, harness.sandbox_id) == [
        Check("mypy", 0),
        Check("pytest", 0),
    ]
    harness.commit("feat: one")
    await harness.open()
    assert "## Checks\n\nAs last run in the sandbox:\n- `mypy`: passed\n- `pytest`: passed" in (
        harness.github.pulls[1].body or ""
    )
