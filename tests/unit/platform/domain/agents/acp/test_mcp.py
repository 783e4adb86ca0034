"""Messages about MCP servers that have exited."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.platform.db.models import McpServer
from sandyard.platform.domain.agents.acp.mcp import MAX_STDERR_SHOWN, describe_exit, read_exits
from sandyard.platform.domain.sandboxes.e2b import ProgramResult, SandboxEngine


def test_describes_an_exit() -> None:
    text = describe_exit("notes", 127, "npx: command not found\n", {})
    assert text.startswith("The MCP server notes exited with status 127. ")
    assert text.endswith("Its error output ended with:\nnpx: command not found")
    assert "status 137 (SIGKILL)." in describe_exit("notes", 137, "", {})
    assert "error output" not in describe_exit("notes", 0, " \n", {})


def test_error_output_is_cleaned_and_shortened() -> None:
    text = describe_exit("notes", 1, "first\n" + "x" * 10_000 + "\r\x1b[31mred\x1b[0m\x07\x00\nlast", {})
    assert text.endswith("x\nred\nlast")
    assert "first" not in text
    assert len(text) < MAX_STDERR_SHOWN + 400


def test_values_of_the_environment_are_removed_before_shortening() -> None:
    key = "sk-0123456789"
    text = describe_exit("notes", 1, f"{key} is wrong: " + key * 1000, {"KEY": key, "LEVEL": "info"})
    assert "0123" not in text
    assert "6789" not in text


def test_invisible_characters_are_removed_and_hide_no_value() -> None:
    text = describe_exit("notes", 1, "a\u202eb sk-01\u200b23\u034f456789 ❤️", {"KEY": "sk-0123456789"})
    assert text.endswith("ended with:\nab *** ❤️")


@pytest.mark.parametrize("status", ["", "x", "1 2", "99999", "-1", "\u0661"])
async def test_invalid_records_are_ignored(status: str) -> None:
    assert await read(f"notes\0{status}\0why\0") == {}


async def test_reads_the_records_of_its_own_servers() -> None:
    found = await read("other\x001\x00why\x00notes\x002\n\x00because\x00cut")
    assert list(found) == ["notes"]
    assert "exited with status 2. " in found["notes"]
    assert found["notes"].endswith("\nbecause")
    assert await read("") == {}


async def read(stdout: str) -> dict[str, str]:
    async def run(*_: Any, **__: Any) -> ProgramResult:
        return ProgramResult(0, stdout.encode(), "")

    engine = cast(SandboxEngine, SimpleNamespace(programs=SimpleNamespace(run=run)))
    return await read_exits(engine, "sbx", "run_1", [McpServer(name="notes", env={})])
