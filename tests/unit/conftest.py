"""Keep the tests in this folder to one process: `make check` runs them all in a minute or two."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
_started: list[str] = []


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS:
        _started.append(f"{event} {arguments[:2]}")


sys.addaudithook(_notice)


@pytest.fixture(autouse=True)
def no_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that starts a process. The one PostgreSQL server of all tests is none of its own."""
    if "postgresql" in getattr(getattr(request.node, "callspec", None), "params", {}).values():
        request.getfixturevalue("postgres_schema")
    del _started[:]
    yield
    assert not _started, f"tests that start processes belong in tests/integration: {_started}"
