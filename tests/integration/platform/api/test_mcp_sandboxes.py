"""Sandboxes, commands and files through /mcp, before a real engine."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from tests.integration.platform.domain.sandboxes.yard import Yard, until
from tests.unit.platform.api.mcp_client import client, done, kept, refused, running, serving, token_of
from tests.unit.platform.world import ROOT

if TYPE_CHECKING:
    from mcp import Client


@pytest.fixture
async def url(yard: Yard) -> AsyncIterator[str]:
    async with serving(build(yard.services, ROUTERS)) as address:
        yield address


@pytest.fixture(params=["2026-07-28", "legacy"])
async def mcp(request: pytest.FixtureRequest, yard: Yard, url: str) -> AsyncIterator[Client]:
    async with kept(url, await token_of(yard), mode=request.param) as made:
        yield made


@pytest.fixture
async def newest(yard: Yard, url: str) -> AsyncIterator[Client]:
    async with kept(url, await token_of(yard)) as made:
        yield made


async def test_a_sandbox_from_beginning_to_end(yard: Yard, mcp: Client) -> None:
    box = (await done(mcp, "create_sandbox", envs={"STAGE": "test"}))["id"]
    result = await done(mcp, "run_command", sandboxId=box, command="echo $STAGE; echo no >&2; exit 3")
    assert (result["status"], result["exitCode"]) == ("exited", 3)
    assert result["stdout"] == {"text": "test\n", "offset": 0, "end": 5, "total": 5}
    assert result["stderr"]["text"] == "no\n"
    assert await done(mcp, "write_file", sandboxId=box, path="a/b.txt", content="grün\n") == {
        "path": "a/b.txt",
        "size": 6,
    }
    listed = await done(mcp, "list_files", sandboxId=box, path="a")
    assert [entry["name"] for entry in listed["items"]] == ["b.txt"] and not listed["truncated"]
    assert (await done(mcp, "read_file", sandboxId=box, path="a/b.txt"))["content"] == "grün\n"
    assert (await done(mcp, "pause_sandbox", sandboxId=box))["status"] == "paused"
    assert (await done(mcp, "get_sandbox", sandboxId=box))["status"] == "paused"
    assert (await done(mcp, "resume_sandbox", sandboxId=box))["status"] == "running"
    assert [one["id"] for one in (await done(mcp, "list_sandboxes"))["items"]] == [box]
    for _ in range(2):
        assert await done(mcp, "destroy_sandbox", sandboxId=box) == {"done": True}
    code, said = await refused(mcp, "run_command", sandboxId=box, command="true")
    assert code == "sandbox_destroyed" and box in said
    recorded = (await yard.services.audit.list(ROOT, AuditQuery(), PageRequest(200))).items
    assert [one.action for one in reversed(recorded)] == [
        f"mcp.{tool}"
        for tool in "create_sandbox run_command write_file list_files read_file pause_sandbox get_sandbox resume_sandbox "
        "list_sandboxes destroy_sandbox destroy_sandbox run_command".split()
    ]
    assert {one.target for one in recorded if one.action != "mcp.list_sandboxes"} == {box}
    assert "echo $STAGE" in recorded[-2].detail["text"]
    assert "command.started" in await yard.kinds(about="command.")


async def test_long_output_comes_in_pieces(mcp: Client) -> None:
    box = (await done(mcp, "create_sandbox"))["id"]
    result = await done(
        mcp, "run_command", sandboxId=box, command="for i in $(seq 2000); do echo ä$i; done", outputLimit=50
    )
    out = result["stdout"]
    assert out["text"].endswith("ä2000\n") and "\N{REPLACEMENT CHARACTER}" not in out["text"]
    assert out["end"] == out["total"] > 10_000 and len(out["text"].encode()) == out["end"] - out["offset"] <= 50
    seen, at = "", 0
    while at < out["total"]:
        piece = await done(mcp, "read_output", commandId=result["commandId"], stdoutOffset=at, outputLimit=4999)
        assert piece["stdout"]["offset"] == at
        seen, at = seen + piece["stdout"]["text"], piece["stdout"]["end"]
    assert seen == "".join(f"ä{n}\n" for n in range(1, 2001))
    await done(
        mcp, "run_command", sandboxId=box, command="head -c 300000 /dev/urandom > noise; printf 'a%.0s' $(seq 9) > nine"
    )
    piece = await done(mcp, "read_file", sandboxId=box, path="noise", offset=1000, limit=2000)
    assert piece["encoding"] == "base64" and len(base64.b64decode(piece["content"])) == 2000
    assert (piece["end"], piece["total"], piece["complete"]) == (3000, 300_000, False)
    piece = await done(mcp, "read_file", sandboxId=box, path="nine", offset=7)
    assert (piece["content"], piece["complete"]) == ("aa", True)
    code, _ = await refused(mcp, "write_file", sandboxId=box, path="x", content="%%", encoding="base64")
    assert code == "invalid_argument"
    code, said = await refused(mcp, "read_file", sandboxId=box, path="nowhere.txt")
    assert code == "not_found" or "nowhere.txt" in said


async def test_a_wait_ends_and_the_command_goes_on(mcp: Client) -> None:
    box = (await done(mcp, "create_sandbox"))["id"]
    result = await done(
        mcp, "run_command", sandboxId=box, command="echo begun; until [ -e go ]; do sleep 0.05; done; echo over",
        waitSeconds=0.5,
    )  # fmt: skip
    assert result["status"] in ("starting", "running")
    await done(mcp, "write_file", sandboxId=box, path="go", content="")
    result = await done(mcp, "read_output", commandId=result["commandId"], waitSeconds=60)
    assert (result["status"], result["stdout"]["text"]) == ("exited", "begun\nover\n")
    result = await done(mcp, "run_command", sandboxId=box, command="sleep 1000", waitSeconds=0)
    ended = await done(mcp, "kill_command", commandId=result["commandId"])
    assert ended["status"] in ("killed", "not_started")


async def test_progress_is_told_while_a_command_runs(mcp: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.api.mcp.commands.PROGRESS_S", 0.2)
    box = (await done(mcp, "create_sandbox"))["id"]
    told: list[tuple[float, float | None, str | None]] = []

    async def progress(at: float, total: float | None, words: str | None) -> None:
        told.append((at, total, words))
        if len(told) == 2:
            await done(mcp, "write_file", sandboxId=box, path="go", content="")

    waits = {"sandboxId": box, "command": "until [ -e go ]; do sleep 0.05; done", "waitSeconds": 60}
    result = await mcp.call_tool("run_command", waits, progress_callback=progress)
    assert not result.is_error and result.structured_content["status"] == "exited"
    assert len(told) >= 2 and told[0][1] == 60 and "Running; " in (told[0][2] or "")
    assert [at for at, _, _ in told] == sorted(at for at, _, _ in told)


async def test_cancelling_ends_the_waiting_and_nothing_else(yard: Yard, newest: Client) -> None:
    box = (await done(newest, "create_sandbox"))["id"]
    waits = {"sandboxId": box, "command": "until [ -e go ]; do sleep 0.05; done; echo over", "waitSeconds": 600}
    async with anyio.create_task_group() as group:
        group.start_soon(newest.call_tool, "run_command", waits)
        commands = await until(lambda: _commands(yard, box), "a command")
        group.cancel_scope.cancel()

    async def interrupted() -> Any:
        found = (await yard.services.audit.list(ROOT, AuditQuery(action="mcp.run_command"), PageRequest())).items
        return [one.outcome for one in found]

    assert await until(interrupted, "the audit knows") == ["interrupted"]
    await done(newest, "write_file", sandboxId=box, path="go", content="")
    result = await done(newest, "read_output", commandId=commands[0].id, waitSeconds=60)
    assert (result["status"], result["stdout"]["text"]) == ("exited", "over\n")


async def test_what_was_begun_is_finished(yard: Yard, newest: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that hangs up in the middle leaves nothing half done."""
    box = (await done(newest, "create_sandbox"))["id"]
    begun, go, real = asyncio.Event(), asyncio.Event(), yard.services.lifecycle.pause

    async def slow(row: Any) -> Any:
        begun.set()
        await go.wait()
        return await real(row)

    monkeypatch.setattr(yard.services.lifecycle, "pause", slow)
    async with anyio.create_task_group() as group:
        group.start_soon(newest.call_tool, "pause_sandbox", {"sandboxId": box})
        await begun.wait()
        group.cancel_scope.cancel()
    go.set()

    async def paused() -> bool:
        return (await yard.services.lifecycle.repository.get(box)).status == "paused"

    assert await until(paused, "it is paused")


async def test_a_stranger_finds_nothing(yard: Yard, url: str, newest: Client) -> None:
    box = (await done(newest, "create_sandbox"))["id"]
    command = (await done(newest, "run_command", sandboxId=box, command="echo secret"))["commandId"]
    session = (await done(newest, "create_session", title="secret"))["id"]
    async with client(url, await token_of(yard, "stranger")) as stranger:
        for there, nowhere, tools in (
            ({"sandboxId": box}, {"sandboxId": "sbx_none"},
             "get_sandbox pause_sandbox resume_sandbox destroy_sandbox git_status git_diff list_files"),
            ({"sandboxId": box, "path": "x"}, {"sandboxId": "sbx_none", "path": "x"}, "read_file"),
            ({"sandboxId": box, "path": "x", "content": ""}, {"sandboxId": "sbx_none", "path": "x", "content": ""}, "write_file"),
            ({"sandboxId": box, "command": "ls"}, {"sandboxId": "sbx_none", "command": "ls"}, "run_command"),
            ({"commandId": command}, {"commandId": "cmd_none"}, "read_output kill_command"),
            ({"sessionId": session}, {"sessionId": "ses_none"}, "get_session delete_session"),
        ):  # fmt: skip
            for tool in tools.split():
                own, none = await refused(stranger, tool, **there), await refused(stranger, tool, **nowhere)
                assert own[0] == none[0] == "not_found", tool
                mine, nobodys = next(iter(there.values())), next(iter(nowhere.values()))
                assert own[1].replace(mine, "") == none[1].replace(nobodys, ""), tool
        assert (await done(stranger, "list_sandboxes"))["items"] == []
        assert (await done(stranger, "list_sessions"))["items"] == []


async def test_sessions(yard: Yard, mcp: Client) -> None:
    made = await done(mcp, "create_session", title="Fix the login")
    assert made["sandboxStatus"] == "provisioning"
    await running(yard, made["sandboxId"])
    assert (await done(mcp, "get_session", sessionId=made["id"]))["sandboxStatus"] == "running"
    listed = await done(mcp, "list_sessions", limit=1)
    assert [one["title"] for one in listed["items"]] == ["Fix the login"] and listed["nextCursor"] is None
    code, _ = await refused(mcp, "git_status", sandboxId=made["sandboxId"])
    assert code == "no_checkout"
    assert await done(mcp, "delete_session", sessionId=made["id"]) == {"done": True}
    assert (await refused(mcp, "get_session", sessionId=made["id"]))[0] == "not_found"


@pytest.mark.slow
async def test_many_at_once(newest: Client) -> None:
    box = (await done(newest, "create_sandbox"))["id"]
    results = await asyncio.gather(
        *(done(newest, "run_command", sandboxId=box, command=f"echo {n}") for n in range(30))
    )
    assert [one["stdout"]["text"] for one in results] == [f"{n}\n" for n in range(30)]


async def test_nobody_waits_when_the_platform_stops(yard: Yard, mcp: Client) -> None:
    box = (await done(mcp, "create_sandbox"))["id"]
    waiting = asyncio.create_task(refused(mcp, "run_command", sandboxId=box, command="sleep 1000", waitSeconds=600))
    await until(lambda: _commands(yard, box), "a command")
    yard.services.commands.stop()
    async with asyncio.timeout(20):
        code, said = await waiting
    assert code == "stopping" and "continues" in said


async def _commands(yard: Yard, box: str) -> Any:
    return (await yard.services.commands.page(yard.owner, box, PageRequest())).items
