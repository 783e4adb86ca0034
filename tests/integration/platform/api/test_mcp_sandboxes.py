"""Sandboxes, commands and files through /mcp, with a real engine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from sandyard.kit.errors import NotFoundError
from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness, until
from tests.unit.platform.api.mcp_client import (
    call_failing_tool,
    call_tool,
    client,
    kept,
    require_running,
    serving,
    token_of,
)
from tests.unit.platform.world import ROOT

if TYPE_CHECKING:
    from mcp import Client


@pytest.fixture
async def url(platform: PlatformHarness) -> AsyncIterator[str]:
    async with serving(build(platform.services, ROUTERS)) as address:
        yield address


@pytest.fixture(params=["2026-07-28", pytest.param("legacy", marks=pytest.mark.slow)])
async def mcp(request: pytest.FixtureRequest, platform: PlatformHarness, url: str) -> AsyncIterator[Client]:
    async with kept(url, await token_of(platform), mode=request.param) as made:
        yield made


@pytest.fixture
async def latest_mcp(platform: PlatformHarness, url: str) -> AsyncIterator[Client]:
    async with kept(url, await token_of(platform)) as made:
        yield made


@pytest.mark.parametrize("mcp", ["2026-07-28", "legacy"], indirect=True)
async def test_a_sandbox_from_creation_to_destruction(platform: PlatformHarness, mcp: Client) -> None:
    sandbox_id = (await call_tool(mcp, "create_sandbox", envs={"STAGE": "test"}))["id"]
    result = await call_tool(mcp, "run_command", sandboxId=sandbox_id, command="echo $STAGE; echo no >&2; exit 3")
    assert (result["status"], result["exitCode"]) == ("exited", 3)
    assert result["stdout"] == {"text": "test\n", "offset": 0, "end": 5, "total": 5}
    assert result["stderr"]["text"] == "no\n"
    assert await call_tool(mcp, "write_file", sandboxId=sandbox_id, path="a/b.txt", content="grün\n") == {
        "path": "a/b.txt",
        "size": 6,
    }
    listed = await call_tool(mcp, "list_files", sandboxId=sandbox_id, path="a")
    assert [entry["name"] for entry in listed["items"]] == ["b.txt"] and not listed["truncated"]
    assert (await call_tool(mcp, "read_file", sandboxId=sandbox_id, path="a/b.txt"))["content"] == "grün\n"
    assert (await call_tool(mcp, "pause_sandbox", sandboxId=sandbox_id))["status"] == "paused"
    assert (await call_tool(mcp, "get_sandbox", sandboxId=sandbox_id))["status"] == "paused"
    assert (await call_tool(mcp, "resume_sandbox", sandboxId=sandbox_id))["status"] == "running"
    assert [item["id"] for item in (await call_tool(mcp, "list_sandboxes"))["items"]] == [sandbox_id]
    for _ in range(2):
        assert await call_tool(mcp, "destroy_sandbox", sandboxId=sandbox_id) == {"done": True}
    code, message = await call_failing_tool(mcp, "run_command", sandboxId=sandbox_id, command="true")
    assert code == "sandbox_destroyed" and sandbox_id in message
    recorded = (await platform.services.audit.list(ROOT, AuditQuery(), PageRequest(200))).items
    assert [item.action for item in reversed(recorded)] == [
        f"mcp.{tool}"
        for tool in "create_sandbox run_command write_file list_files read_file pause_sandbox get_sandbox resume_sandbox "
        "list_sandboxes destroy_sandbox destroy_sandbox run_command".split()
    ]
    assert {candidate.target for candidate in recorded if candidate.action != "mcp.list_sandboxes"} == {sandbox_id}
    assert "echo $STAGE" in recorded[-2].detail["text"]
    assert "command.started" in await platform.list_event_kinds(prefix="command.")


async def test_long_output_is_read_in_pieces(mcp: Client) -> None:
    sandbox_id = (await call_tool(mcp, "create_sandbox"))["id"]
    result = await call_tool(
        mcp, "run_command", sandboxId=sandbox_id, command="for i in $(seq 2000); do echo ä$i; done", outputLimit=50
    )
    out = result["stdout"]
    assert out["text"].endswith("ä2000\n") and "\N{REPLACEMENT CHARACTER}" not in out["text"]
    assert out["end"] == out["total"] > 10_000 and len(out["text"].encode()) == out["end"] - out["offset"] <= 50
    seen, at = "", 0
    while at < out["total"]:
        piece = await call_tool(mcp, "read_output", commandId=result["commandId"], stdoutOffset=at, outputLimit=4999)
        assert piece["stdout"]["offset"] == at
        seen, at = seen + piece["stdout"]["text"], piece["stdout"]["end"]
    assert seen == "".join(f"ä{n}\n" for n in range(1, 2001))
    await call_tool(
        mcp,
        "run_command",
        sandboxId=sandbox_id,
        command="head -c 300000 /dev/urandom > noise; printf 'a%.0s' $(seq 9) > nine",
    )
    piece = await call_tool(mcp, "read_file", sandboxId=sandbox_id, path="noise", offset=1000, limit=2000)
    assert piece["encoding"] == "base64" and len(base64.b64decode(piece["content"])) == 2000
    assert (piece["end"], piece["total"], piece["complete"]) == (3000, 300_000, False)
    piece = await call_tool(mcp, "read_file", sandboxId=sandbox_id, path="nine", offset=7)
    assert (piece["content"], piece["complete"]) == ("aa", True)
    code, _ = await call_failing_tool(
        mcp, "write_file", sandboxId=sandbox_id, path="x", content="%%", encoding="base64"
    )
    assert code == "invalid_argument"
    code, message = await call_failing_tool(mcp, "read_file", sandboxId=sandbox_id, path="nowhere.txt")
    assert code == "not_found" or "nowhere.txt" in message


async def test_the_command_continues_after_the_wait_ends(mcp: Client) -> None:
    sandbox_id = (await call_tool(mcp, "create_sandbox"))["id"]
    result = await call_tool(
        mcp, "run_command", sandboxId=sandbox_id, command="echo begun; until [ -e go ]; do sleep 0.05; done; echo over",
        waitSeconds=0.5,
    )  # fmt: skip
    assert result["status"] in ("starting", "running")
    await call_tool(mcp, "write_file", sandboxId=sandbox_id, path="go", content="")
    result = await call_tool(mcp, "read_output", commandId=result["commandId"], waitSeconds=60)
    assert (result["status"], result["stdout"]["text"]) == ("exited", "begun\nover\n")
    result = await call_tool(mcp, "run_command", sandboxId=sandbox_id, command="sleep 1000", waitSeconds=0)
    ended = await call_tool(mcp, "kill_command", commandId=result["commandId"])
    assert ended["status"] in ("killed", "not_started")


async def test_progress_is_reported_while_a_command_runs(mcp: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.api.mcp.commands.PROGRESS_S", 0.2)
    sandbox_id = (await call_tool(mcp, "create_sandbox"))["id"]
    reported: list[tuple[float, float | None, str | None]] = []

    async def record_progress(at: float, total: float | None, message: str | None) -> None:
        reported.append((at, total, message))
        if len(reported) == 2:
            await call_tool(mcp, "write_file", sandboxId=sandbox_id, path="go", content="")

    arguments = {"sandboxId": sandbox_id, "command": "until [ -e go ]; do sleep 0.05; done", "waitSeconds": 60}
    result = await mcp.call_tool("run_command", arguments, progress_callback=record_progress)
    assert not result.is_error and result.structured_content["status"] == "exited"
    assert len(reported) >= 2 and reported[0][1] == 60 and "Running; " in (reported[0][2] or "")
    assert [at for at, _, _ in reported] == sorted(at for at, _, _ in reported)


async def test_cancelling_the_call_does_not_stop_the_command(platform: PlatformHarness, latest_mcp: Client) -> None:
    sandbox_id = (await call_tool(latest_mcp, "create_sandbox"))["id"]
    arguments = {
        "sandboxId": sandbox_id,
        "command": "until [ -e go ]; do sleep 0.05; done; echo over",
        "waitSeconds": 600,
    }
    async with anyio.create_task_group() as group:
        group.start_soon(latest_mcp.call_tool, "run_command", arguments)
        commands = await until(lambda: _list_commands(platform, sandbox_id), "a command exists")
        group.cancel_scope.cancel()

    async def list_outcomes() -> Any:
        found = (await platform.services.audit.list(ROOT, AuditQuery(action="mcp.run_command"), PageRequest())).items
        return [item.outcome for item in found]

    assert await until(list_outcomes, "the call is audited") == ["interrupted"]
    await call_tool(latest_mcp, "write_file", sandboxId=sandbox_id, path="go", content="")
    result = await call_tool(latest_mcp, "read_output", commandId=commands[0].id, waitSeconds=60)
    assert (result["status"], result["stdout"]["text"]) == ("exited", "over\n")


async def test_an_operation_is_finished_after_the_client_disconnects(
    platform: PlatformHarness, latest_mcp: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that disconnects in the middle leaves no partial change."""
    sandbox_id = (await call_tool(latest_mcp, "create_sandbox"))["id"]
    started, proceed, real = asyncio.Event(), asyncio.Event(), platform.services.lifecycle.pause

    async def held_pause(row: Any) -> Any:
        started.set()
        await proceed.wait()
        return await real(row)

    monkeypatch.setattr(platform.services.lifecycle, "pause", held_pause)
    async with anyio.create_task_group() as group:
        group.start_soon(latest_mcp.call_tool, "pause_sandbox", {"sandboxId": sandbox_id})
        await started.wait()
        group.cancel_scope.cancel()
    proceed.set()

    async def is_paused() -> bool:
        return (await platform.services.lifecycle.repository.get(sandbox_id)).status == "paused"

    assert await until(is_paused, "the sandbox is paused")


async def test_a_stranger_gets_not_found_for_everything(
    platform: PlatformHarness, url: str, latest_mcp: Client
) -> None:
    sandbox_id = (await call_tool(latest_mcp, "create_sandbox"))["id"]
    command = (await call_tool(latest_mcp, "run_command", sandboxId=sandbox_id, command="echo secret"))["commandId"]
    session = (await call_tool(latest_mcp, "create_session", title="secret"))["id"]
    async with client(url, await token_of(platform, "stranger")) as stranger:
        for existing, unknown, tools in (
            ({"sandboxId": sandbox_id}, {"sandboxId": "sbx_none"},
             "get_sandbox pause_sandbox resume_sandbox destroy_sandbox git_status git_diff list_files"),
            ({"sandboxId": sandbox_id, "path": "x"}, {"sandboxId": "sbx_none", "path": "x"}, "read_file"),
            ({"sandboxId": sandbox_id, "path": "x", "content": ""}, {"sandboxId": "sbx_none", "path": "x", "content": ""}, "write_file"),
            ({"sandboxId": sandbox_id, "command": "ls"}, {"sandboxId": "sbx_none", "command": "ls"}, "run_command"),
            ({"commandId": command}, {"commandId": "cmd_none"}, "read_output kill_command"),
            ({"sessionId": session}, {"sessionId": "ses_none"}, "get_session delete_session"),
        ):  # fmt: skip
            for tool in tools.split():
                foreign, missing = (
                    await call_failing_tool(stranger, tool, **existing),
                    await call_failing_tool(stranger, tool, **unknown),
                )
                assert foreign[0] == missing[0] == "not_found", tool
                existing_id, unknown_id = next(iter(existing.values())), next(iter(unknown.values()))
                assert foreign[1].replace(existing_id, "") == missing[1].replace(unknown_id, ""), tool
        assert (await call_tool(stranger, "list_sandboxes"))["items"] == []
        assert (await call_tool(stranger, "list_sessions"))["items"] == []


async def test_sessions_are_created_listed_and_deleted(platform: PlatformHarness, mcp: Client) -> None:
    created = await call_tool(mcp, "create_session", title="Fix the login")
    assert created["sandboxStatus"] == "provisioning"
    await require_running(platform, created["sandboxId"])
    assert (await call_tool(mcp, "get_session", sessionId=created["id"]))["sandboxStatus"] == "running"
    listed = await call_tool(mcp, "list_sessions", limit=1)
    assert [item["title"] for item in listed["items"]] == ["Fix the login"] and listed["nextCursor"] is None
    code, _ = await call_failing_tool(mcp, "git_status", sandboxId=created["sandboxId"])
    assert code == "no_checkout"
    assert await call_tool(mcp, "delete_session", sessionId=created["id"]) == {"done": True}
    assert (await call_failing_tool(mcp, "get_session", sessionId=created["id"]))[0] == "not_found"


@pytest.mark.slow
async def test_many_commands_run_at_once(latest_mcp: Client) -> None:
    sandbox_id = (await call_tool(latest_mcp, "create_sandbox"))["id"]
    results = await asyncio.gather(
        *(call_tool(latest_mcp, "run_command", sandboxId=sandbox_id, command=f"echo {n}") for n in range(30))
    )
    assert [result["stdout"]["text"] for result in results] == [f"{n}\n" for n in range(30)]


async def test_waiting_ends_when_the_platform_stops(platform: PlatformHarness, mcp: Client) -> None:
    sandbox_id = (await call_tool(mcp, "create_sandbox"))["id"]
    waiting = asyncio.create_task(
        call_failing_tool(mcp, "run_command", sandboxId=sandbox_id, command="sleep 1000", waitSeconds=600)
    )
    await until(lambda: _list_commands(platform, sandbox_id), "a command exists")
    platform.services.commands.stop()
    async with asyncio.timeout(20):
        code, message = await waiting
    assert code == "stopping" and "continues" in message


async def _list_commands(platform: PlatformHarness, sandbox_id: str) -> Any:
    return (await platform.services.commands.page(platform.owner, sandbox_id, PageRequest())).items


@pytest.mark.parametrize("owner", ["removed", "somebody else"])
async def test_a_command_returns_no_output_to_a_user_removed_meanwhile(
    platform: PlatformHarness, url: str, owner: str
) -> None:
    removed = await platform.create_person("removed")
    project_id = await platform.project(platform.owner, removed)
    sandbox_owner = removed if owner == "removed" else platform.owner
    row = await platform.services.sandboxes.create_sandbox(sandbox_owner, project_id=project_id)
    assert row.engine_id
    token = (await platform.services.users.create_token(removed, "mcp")).value.reveal()
    wait = "touch begun-$0; until [ -e go ]; do sleep 0.05; done; echo secret"
    headers, base = {"Authorization": f"Bearer {token}"}, url.removesuffix("/mcp")
    async with client(url, token) as tools, httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as api:
        executing = asyncio.create_task(
            api.post(f"/api/v1/sandboxes/{row.id}/execute", json={"command": f"bash -c '{wait}' 1"})
        )
        calling = asyncio.create_task(
            call_failing_tool(tools, "run_command", sandboxId=row.id, command=f"bash -c '{wait}' 2", waitSeconds=60)
        )
        for number in (1, 2):
            await until(lambda number=number: has_file(platform, row, f"begun-{number}"), "the command runs")  # type: ignore[misc]
        await platform.services.projects.remove_member(platform.owner, project_id, removed.user_id)
        await platform.services.engine.files.write(row.engine_id, "go", one_chunk(b""))
        response, (code, _) = await executing, await calling
    expected = (403, "owner_without_access") if owner == "removed" else (404, "not_found")
    assert (response.status_code, response.json()["code"]) == expected
    assert "secret" not in response.text
    assert code == expected[1]


async def test_waiting_for_a_command_ends_when_its_sandbox_is_paused_because_the_owner_was_removed(
    platform: PlatformHarness, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("api.revocation.RECHECK_SECONDS", "api.mcp.commands.PROGRESS_S"):
        monkeypatch.setattr(f"sandyard.platform.{name}", 0.2)
    for name in ("ACCESS_CHECK_S", "SILENCE_S"):
        monkeypatch.setattr(f"sandyard.platform.domain.sandboxes.commands.{name}", 0.2)
    removed = await platform.create_person("removed")
    project_id = await platform.project(platform.owner, removed)
    row = await platform.services.sandboxes.create_sandbox(removed, project_id=project_id)
    token = (await platform.services.users.create_token(removed, "mcp")).value.reveal()
    headers, base = {"Authorization": f"Bearer {token}"}, url.removesuffix("/mcp")
    async with client(url, token) as tools, httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as api:
        executing = asyncio.create_task(
            api.post(f"/api/v1/sandboxes/{row.id}/execute", json={"command": "touch begun-1; sleep 1000"})
        )
        calling = asyncio.create_task(
            call_failing_tool(
                tools, "run_command", sandboxId=row.id, command="touch begun-2; sleep 1000", waitSeconds=600
            )
        )
        for number in (1, 2):
            await until(lambda number=number: has_file(platform, row, f"begun-{number}"), "the command runs")  # type: ignore[misc]
        stream = f"/api/v1/commands/{(await _list_commands(platform, row.id))[0].id}/stream"
        async with api.stream("GET", stream) as following:
            assert following.status_code == 200
            await platform.services.projects.remove_member(platform.owner, project_id, removed.user_id)
            await platform.finish_round(platform.services.maintenance.stop_without_access())
            async with asyncio.timeout(20):
                response, (code, _) = await executing, await calling
                streamed = await following.aread()
        again = await api.get(stream)
    assert (response.status_code, response.json()["code"]) == (403, "owner_without_access")
    assert (code, again.status_code) == ("owner_without_access", 403)
    assert b"event: end" not in streamed


async def has_file(platform: PlatformHarness, row: Sandbox, path: str) -> bool:
    with contextlib.suppress(NotFoundError):
        return bool(await platform.services.engine.files.stat(row.engine_id or "", path))
    return False


async def one_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data
