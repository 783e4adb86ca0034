from __future__ import annotations

import asyncio
import contextlib

import pytest

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.sandboxes.e2b import (
    EngineConfig,
    EngineSandbox,
    SandboxEngine,
    Terminal,
    TerminalNotFoundError,
)


async def wait_for_text(terminal: Terminal, text: bytes) -> bytes:
    """Read until the text is on the screen."""
    screen = b""
    async with asyncio.timeout(30):
        async for chunk in terminal.output():
            screen += chunk
            if text in screen:
                return screen
    raise AssertionError(f"{text!r} was not shown: {screen!r}")


async def test_a_shell_gets_its_size_directory_and_variables(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    terminal = await engine.terminals.open(sandbox.id, 100, 30, cwd="/var", envs={"COLOUR": "green"})
    assert terminal.pid > 0
    await terminal.write(b'echo "[$COLOUR|$PWD|$(stty size)]"\n')
    await wait_for_text(terminal, b"[green|/var|30 100]")
    await terminal.resize(120, 40)
    await terminal.write(b'echo "<$(stty size)>"\n')
    await wait_for_text(terminal, b"<40 120>")
    assert await terminal.close() is True
    assert await terminal.close() is False


async def test_a_later_process_can_attach_to_the_same_shell(
    engine: SandboxEngine, sandbox: EngineSandbox, config: EngineConfig
) -> None:
    first = await engine.terminals.open(sandbox.id, 80, 24)
    await first.write(b"MEMORY=kept; echo re''ady\n")
    await wait_for_text(first, b"ready")
    await first.detach()

    later = SandboxEngine(config)
    second = await later.terminals.attach(sandbox.id, first.pid)
    await second.write(b'echo "($MEMORY)"\n')
    await wait_for_text(second, b"(kept)")
    await second.close()
    await later.close()


async def test_two_clients_see_the_same_terminal(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    first = await engine.terminals.open(sandbox.id, 80, 24)
    second = await engine.terminals.attach(sandbox.id, first.pid)
    await first.write(b"echo fo''r bo''th\n")
    await asyncio.gather(wait_for_text(first, b"for both"), wait_for_text(second, b"for both"))
    await first.close()
    await second.detach()


async def test_output_ends_when_the_shell_exits(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    terminal = await engine.terminals.open(sandbox.id, 80, 24)
    await terminal.write(b"exit 3\n")
    async with asyncio.timeout(30):
        async for _ in terminal.output():
            pass
    assert terminal.exit_code == 3
    for attempt in (terminal.write(b"x"), terminal.resize(90, 20)):
        with pytest.raises(TerminalNotFoundError):
            await attempt
    with contextlib.suppress(TerminalNotFoundError):  # an engine may remember the exit code for a while
        again = await engine.terminals.attach(sandbox.id, terminal.pid)
        assert [chunk async for chunk in again.output()] == []
        assert again.exit_code == 3
    with pytest.raises(TerminalNotFoundError):
        await engine.terminals.attach(sandbox.id, 999999)


@pytest.mark.parametrize(("cols", "rows"), [(0, 24), (80, 0), (-1, 24), (5000, 24)])
async def test_invalid_sizes_are_rejected(engine: SandboxEngine, sandbox: EngineSandbox, cols: int, rows: int) -> None:
    with pytest.raises(InvalidInputError, match="columns and rows"):
        await engine.terminals.open(sandbox.id, cols, rows)
