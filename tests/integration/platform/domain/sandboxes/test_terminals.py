"""Terminals: shells that people can return to."""

from __future__ import annotations

import asyncio

import pytest

from sandyard.kit.errors import NotFoundError
from sandyard.platform.domain.sandboxes.terminals import Terminals, Viewer
from tests.integration.platform.domain.sandboxes.platform_harness import DEADLINE, PlatformHarness, until


async def wait_for_text(viewer: Viewer, text: bytes) -> bytes:
    """Read until the text is shown. Return everything shown until then."""
    screen = b""
    async with asyncio.timeout(DEADLINE):
        while text not in screen:
            piece = await viewer.pieces.get()
            assert piece is not None, screen
            screen += piece
    return screen


async def wait_for_end(viewer: Viewer) -> None:
    async with asyncio.timeout(DEADLINE):
        while await viewer.pieces.get() is not None:
            pass


async def test_viewers_share_a_shell_and_a_late_viewer_sees_earlier_output(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 100, 30)
    async with (
        terminals.view(platform.owner, row.id, shell_row.id) as (shell, first),
        terminals.view(platform.owner, row.id, shell_row.id) as (same, second),
    ):
        assert same is shell
        await terminals.write(shell, b'echo "<$(stty size)>"\n')
        await asyncio.gather(wait_for_text(first, b"<30 100>"), wait_for_text(second, b"<30 100>"))
        await terminals.resize(shell, 120, 40)
        await terminals.write(shell, b'echo "<$(stty size)>"\n')
        await asyncio.gather(wait_for_text(first, b"<40 120>"), wait_for_text(second, b"<40 120>"))
        async with terminals.view(platform.owner, row.id, shell_row.id) as (_, third):
            screen = await wait_for_text(third, b"<40 120>")
            assert b"<30 100>" in screen, "a late viewer sees earlier output"
    assert shell.viewers == set()
    assert [found.id for found in await terminals.list(platform.owner, row.id)] == [shell_row.id]


async def test_a_viewer_keeps_its_sandbox_awake(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox(idle_seconds=60)
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    async with terminals.view(platform.owner, row.id, shell_row.id):
        platform.clock.advance(100)
        await platform.finish_round(platform.services.maintenance.pause_idle())
        assert (await platform.reload(row)).status == "running"
    platform.clock.advance(100)
    await platform.finish_round(platform.services.maintenance.pause_idle())
    assert (await platform.reload(row)).status == "paused"


async def test_a_later_process_continues_in_the_same_shell(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    async with terminals.view(platform.owner, row.id, shell_row.id) as (shell, viewer):
        await terminals.write(shell, b"MEMORY=kept; echo re''ady\n")
        await wait_for_text(viewer, b"ready")
    later = Terminals(platform.services.database, platform.services.lifecycle)
    async with later.view(platform.owner, row.id, shell_row.id) as (shell, viewer):
        await later.write(shell, b'echo "($MEMORY)"\n')
        await wait_for_text(viewer, b"(kept)")


async def test_a_shell_survives_a_pause_of_its_sandbox(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    async with terminals.view(platform.owner, row.id, shell_row.id) as (shell, viewer):
        await terminals.write(shell, b"MEMORY=kept; echo re''ady\n")
        await wait_for_text(viewer, b"ready")
    assert row.engine_id
    await platform.services.engine.pause(row.engine_id)  # without the platform's knowledge
    later = Terminals(platform.services.database, platform.services.lifecycle)
    async with later.view(platform.owner, row.id, shell_row.id) as (shell, viewer):
        await later.write(shell, b'echo "($MEMORY)"\n')
        await wait_for_text(viewer, b"(kept)")


async def test_a_viewer_after_a_pause_sees_earlier_output(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    async with terminals.view(platform.owner, row.id, shell_row.id) as (shell, viewer):
        await terminals.write(shell, b"echo re''ady\n")
        await wait_for_text(viewer, b"ready")
    await platform.services.sandboxes.pause(platform.owner, row.id)
    assert shell.reader is not None
    await asyncio.wait((shell.reader,), timeout=DEADLINE)
    async with terminals.view(platform.owner, row.id, shell_row.id) as (again, viewer):
        assert again is not shell, "the pause ended the reading"
        await wait_for_text(viewer, b"ready")
        await terminals.write(again, b"echo usa''ble\n")
        await wait_for_text(viewer, b"usable")


async def test_an_ended_shell_is_not_found(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    async with terminals.view(platform.owner, row.id, shell_row.id) as (shell, viewer):
        await terminals.write(shell, b"exit\n")
        await wait_for_end(viewer)
        assert shell.has_ended
    assert await terminals.list(platform.owner, row.id) == []
    for known in (terminals, Terminals(platform.services.database, platform.services.lifecycle)):
        with pytest.raises(NotFoundError, match="has ended"):
            async with known.view(platform.owner, row.id, shell_row.id):
                pass


async def test_a_shell_that_ended_while_nobody_read_it_is_not_found(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    shell = terminals.shells[shell_row.id]
    assert shell.reader is not None
    shell.reader.cancel()
    await asyncio.wait((shell.reader,))
    await platform.run(row, f"kill -9 {shell_row.pid}; while kill -0 {shell_row.pid} 2>/dev/null; do sleep 0.02; done")
    later = Terminals(platform.services.database, platform.services.lifecycle)

    async def is_gone() -> bool:
        try:
            async with later.view(platform.owner, row.id, shell_row.id) as (_, viewer):
                await wait_for_end(viewer)  # an engine may remember the exit code for a while
        except NotFoundError:
            return True
        return False

    await until(is_gone, "the shell is gone")
    assert await later.list(platform.owner, row.id) == []


async def test_close_is_idempotent(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    async with terminals.view(platform.owner, row.id, shell_row.id) as (_, viewer):
        for _ in range(2):
            await terminals.close(platform.owner, row.id, shell_row.id)
        await wait_for_end(viewer)
    assert await terminals.list(platform.owner, row.id) == []


async def test_the_shells_of_a_destroyed_sandbox_are_closed(platform: PlatformHarness) -> None:
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    async with terminals.view(platform.owner, row.id, shell_row.id) as (_, viewer):
        await platform.services.sandboxes.destroy_sandbox(platform.owner, row.id)
        await wait_for_end(viewer)
    assert await terminals.list(platform.owner, row.id) == []
    await terminals.close(platform.owner, row.id, shell_row.id)


async def test_a_shell_cannot_be_reached_through_another_sandbox(platform: PlatformHarness) -> None:
    """The user knows the terminal's id and has another sandbox."""
    terminals, row = platform.services.terminals, await platform.create_sandbox()
    shell_row = await terminals.open(platform.owner, row.id, 80, 24)
    thief = await platform.create_person("thief")
    own = await platform.services.sandboxes.create_sandbox(thief)
    for sandbox_id in (own.id, row.id):
        with pytest.raises(NotFoundError):
            async with terminals.view(thief, sandbox_id, shell_row.id):
                pass
        with pytest.raises(NotFoundError):
            await terminals.close(thief, sandbox_id, shell_row.id)
    with pytest.raises(NotFoundError):
        await terminals.list(thief, row.id)
    with pytest.raises(NotFoundError):
        await terminals.open(thief, row.id, 80, 24)


async def test_a_viewer_that_falls_too_far_behind_is_disconnected() -> None:
    viewer = Viewer(asyncio.Queue(3))
    for number in range(4):
        viewer.send(b"%d" % number)
    assert viewer.pieces.get_nowait() is None
    assert viewer.pieces.empty()
