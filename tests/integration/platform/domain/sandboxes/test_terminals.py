"""Shells that people come back to."""

from __future__ import annotations

import asyncio

import pytest

from sandyard.kit.errors import NotFoundError
from sandyard.platform.domain.sandboxes.terminals import Terminals, Viewer
from tests.integration.platform.domain.sandboxes.yard import DEADLINE, Yard, until


async def shows(viewer: Viewer, text: bytes) -> bytes:
    """All that it has seen until then."""
    screen = b""
    async with asyncio.timeout(DEADLINE):
        while text not in screen:
            piece = await viewer.pieces.get()
            assert piece is not None, screen
            screen += piece
    return screen


async def ends(viewer: Viewer) -> None:
    async with asyncio.timeout(DEADLINE):
        while await viewer.pieces.get() is not None:
            pass


async def test_two_look_at_one_shell_and_a_third_comes_later(yard: Yard) -> None:
    terminals, row = yard.services.terminals, await yard.sandbox()
    shell_row = await terminals.open(yard.owner, row.id, 100, 30)
    async with (
        terminals.view(yard.owner, row.id, shell_row.id) as (shell, first),
        terminals.view(yard.owner, row.id, shell_row.id) as (same, second),
    ):
        assert same is shell
        await terminals.write(shell, b'echo "<$(stty size)>"\n')
        await asyncio.gather(shows(first, b"<30 100>"), shows(second, b"<30 100>"))
        await terminals.resize(shell, 120, 40)
        await terminals.write(shell, b'echo "<$(stty size)>"\n')
        await asyncio.gather(shows(first, b"<40 120>"), shows(second, b"<40 120>"))
        async with terminals.view(yard.owner, row.id, shell_row.id) as (_, third):
            screen = await shows(third, b"<40 120>")
            assert b"<30 100>" in screen, "what was said before is shown to who comes later"
    assert shell.viewers == set()
    assert [found.id for found in await terminals.list(yard.owner, row.id)] == [shell_row.id]


async def test_a_viewer_keeps_its_sandbox_awake(yard: Yard) -> None:
    terminals, row = yard.services.terminals, await yard.sandbox(idle_seconds=60)
    shell_row = await terminals.open(yard.owner, row.id, 80, 24)
    async with terminals.view(yard.owner, row.id, shell_row.id):
        yard.clock.advance(100)
        await yard.services.maintenance.pause_idle()
        assert (await yard.row(row)).status == "running"
    yard.clock.advance(100)
    await yard.services.maintenance.pause_idle()
    assert (await yard.row(row)).status == "paused"


async def test_a_later_process_goes_on_in_the_same_shell(yard: Yard) -> None:
    terminals, row = yard.services.terminals, await yard.sandbox()
    shell_row = await terminals.open(yard.owner, row.id, 80, 24)
    async with terminals.view(yard.owner, row.id, shell_row.id) as (shell, viewer):
        await terminals.write(shell, b"MEMORY=kept; echo re''ady\n")
        await shows(viewer, b"ready")
    later = Terminals(yard.services.database, yard.services.lifecycle)
    async with later.view(yard.owner, row.id, shell_row.id) as (shell, viewer):
        await later.write(shell, b'echo "($MEMORY)"\n')
        await shows(viewer, b"(kept)")


async def test_a_shell_is_found_again_in_a_sandbox_that_slept(yard: Yard) -> None:
    terminals, row = yard.services.terminals, await yard.sandbox()
    shell_row = await terminals.open(yard.owner, row.id, 80, 24)
    async with terminals.view(yard.owner, row.id, shell_row.id) as (shell, viewer):
        await terminals.write(shell, b"MEMORY=kept; echo re''ady\n")
        await shows(viewer, b"ready")
    assert row.engine_id
    await yard.services.engine.pause(row.engine_id)  # and nobody here knows
    later = Terminals(yard.services.database, yard.services.lifecycle)
    async with later.view(yard.owner, row.id, shell_row.id) as (shell, viewer):
        await later.write(shell, b'echo "($MEMORY)"\n')
        await shows(viewer, b"(kept)")


async def test_a_shell_that_has_ended_is_not_there(yard: Yard) -> None:
    terminals, row = yard.services.terminals, await yard.sandbox()
    shell_row = await terminals.open(yard.owner, row.id, 80, 24)
    async with terminals.view(yard.owner, row.id, shell_row.id) as (shell, viewer):
        await terminals.write(shell, b"exit\n")
        await ends(viewer)
        assert shell.over
    assert await terminals.list(yard.owner, row.id) == []
    for known in (terminals, Terminals(yard.services.database, yard.services.lifecycle)):
        with pytest.raises(NotFoundError, match="has ended"):
            async with known.view(yard.owner, row.id, shell_row.id):
                pass


async def test_a_shell_that_ended_while_nobody_read_it_is_not_there(yard: Yard) -> None:
    terminals, row = yard.services.terminals, await yard.sandbox()
    shell_row = await terminals.open(yard.owner, row.id, 80, 24)
    shell = terminals._shells[shell_row.id]
    assert shell.reader is not None
    shell.reader.cancel()
    await asyncio.wait((shell.reader,))
    await yard.run(row, f"kill -9 {shell_row.pid}; while kill -0 {shell_row.pid} 2>/dev/null; do sleep 0.02; done")
    later = Terminals(yard.services.database, yard.services.lifecycle)

    async def gone() -> bool:
        try:
            async with later.view(yard.owner, row.id, shell_row.id) as (_, viewer):
                await ends(viewer)  # an engine may remember for a while how it ended
        except NotFoundError:
            return True
        return False

    await until(gone, "gone")
    assert await later.list(yard.owner, row.id) == []


async def test_close_may_be_said_twice(yard: Yard) -> None:
    terminals, row = yard.services.terminals, await yard.sandbox()
    shell_row = await terminals.open(yard.owner, row.id, 80, 24)
    async with terminals.view(yard.owner, row.id, shell_row.id) as (_, viewer):
        for _ in range(2):
            await terminals.close(yard.owner, row.id, shell_row.id)
        await ends(viewer)
    assert await terminals.list(yard.owner, row.id) == []


async def test_the_shells_of_a_destroyed_sandbox_are_closed(yard: Yard) -> None:
    terminals, row = yard.services.terminals, await yard.sandbox()
    shell_row = await terminals.open(yard.owner, row.id, 80, 24)
    async with terminals.view(yard.owner, row.id, shell_row.id) as (_, viewer):
        await yard.services.sandboxes.destroy_sandbox(yard.owner, row.id)
        await ends(viewer)
    assert await terminals.list(yard.owner, row.id) == []
    await terminals.close(yard.owner, row.id, shell_row.id)


async def test_nobody_reaches_a_shell_by_way_of_another_sandbox(yard: Yard) -> None:
    """Whoever knows a terminal's id and has a sandbox of their own."""
    terminals, row = yard.services.terminals, await yard.sandbox()
    shell_row = await terminals.open(yard.owner, row.id, 80, 24)
    thief = await yard.person("thief")
    own = await yard.services.sandboxes.create_sandbox(thief)
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


async def test_a_viewer_that_is_too_far_behind_is_sent_away() -> None:
    viewer = Viewer(asyncio.Queue(3))
    for number in range(4):
        viewer.send(b"%d" % number)
    assert viewer.pieces.get_nowait() is None
    assert viewer.pieces.empty()
