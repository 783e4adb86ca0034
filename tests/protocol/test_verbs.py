"""Verbs that no other test calls: old names that still work, and ways in that only one of the SDKs has."""

from __future__ import annotations

import httpx
import pytest
from e2b import AsyncSandbox, AsyncSecret, CommandExitException, Sandbox, SandboxException, SandboxState, Secret
from e2b.sandbox.commands.command_handle import PtySize
from e2b_code_interpreter import AsyncSandbox as AsyncInterpreter

from .conftest import NewAsyncSandbox, NewSandbox
from .engine import Engine
from .waiting import until_async


def test_the_old_name_of_pause(sandbox: Sandbox) -> None:
    sandbox.beta_pause()
    assert Sandbox.get_info(sandbox.sandbox_id).state is SandboxState.PAUSED


async def test_the_old_name_of_pause_async(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.beta_pause()
    assert (await AsyncSandbox.get_info(async_sandbox.sandbox_id)).state is SandboxState.PAUSED


def test_mcp(sandbox: Sandbox) -> None:
    assert sandbox.get_mcp_url() == f"https://{sandbox.get_host(50005)}/mcp"
    sandbox.files.write("/etc/mcp-gateway/.token", "of the gateway", user="root")
    assert sandbox.get_mcp_token() == "of the gateway"


async def test_mcp_async(async_sandbox: AsyncSandbox) -> None:
    assert async_sandbox.get_mcp_url() == f"https://{async_sandbox.get_host(50005)}/mcp"
    await async_sandbox.files.write("/etc/mcp-gateway/.token", "of the gateway", user="root")
    assert await async_sandbox.get_mcp_token() == "of the gateway"


def test_no_gateway_for_mcp(new_sandbox: NewSandbox) -> None:
    with pytest.raises(SandboxException, match=r"mcp-gateway.*not found"):
        new_sandbox(mcp={"exa": {"apiKey": "x"}})


async def test_addresses_of_files_async(async_sandbox: AsyncSandbox, engine: Engine) -> None:
    up = httpx.post(async_sandbox.upload_url("notes.txt"), files={"file": b"kept"})
    assert up.status_code == 200, up.text
    assert httpx.get(async_sandbox.download_url("notes.txt")).text == "kept"
    assert async_sandbox.download_url("notes.txt").startswith(engine.url)


async def test_snapshots_async(async_sandbox: AsyncSandbox) -> None:
    made = await async_sandbox.create_snapshot()
    try:
        pages = async_sandbox.list_snapshots()
        assert made.snapshot_id in [snapshot.snapshot_id for snapshot in await pages.next_items()]
        assert not pages.has_next
    finally:
        await AsyncSandbox.delete_snapshot(made.snapshot_id)


async def test_input_in_order_async(async_sandbox: AsyncSandbox) -> None:
    command = await async_sandbox.commands.run("cat", background=True, stdin=True)
    async with async_sandbox.commands.stream_input(command.pid) as stream:
        for number in range(50):
            await stream.send(f"{number}\n")
    await async_sandbox.commands.close_stdin(command.pid)
    assert (await command.wait()).stdout.split() == [str(number) for number in range(50)]


async def test_a_terminal_read_again_async(new_async_sandbox: NewAsyncSandbox) -> None:
    sandbox = await new_async_sandbox()
    shown: list[bytes] = []

    async def look(data: bytes) -> None:
        shown.append(data)

    async def is_shown() -> bool:
        return b"sum 42" in b"".join(shown)

    terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=look)
    await terminal.disconnect()
    again = await sandbox.pty.connect(terminal.pid, on_data=look)
    stream = sandbox.pty.stream_input(terminal.pid)
    await stream.send(b"echo sum $((6 * 7))\n")
    await until_async(is_shown)
    await stream.send(b"exit 3\n")
    await stream.close()
    with pytest.raises(CommandExitException) as ended:
        await again.wait()
    assert ended.value.exit_code == 3


def test_identities_are_not_given_out(new_sandbox: NewSandbox) -> None:
    token = Secret.iam_token(audience="sts.amazonaws.com", token_type="JWT-SVID")
    with pytest.raises(SandboxException, match="Workload identity is not supported"):
        new_sandbox(iam={"tokens": {"aws": token}})


async def test_secrets_async(unique: str, new_async_sandbox: NewAsyncSandbox) -> None:
    assert not await AsyncSecret.exists(unique)
    await AsyncSecret.create(unique, "hidden")
    try:
        assert await AsyncSecret.exists(unique)
        assert AsyncSecret.fill(unique) == f"${{e2b.secrets.{unique}}}"
    finally:
        await AsyncSecret.destroy(unique)
    token = AsyncSecret.iam_token(audience="sts.amazonaws.com", token_type="JWT-SVID")
    with pytest.raises(SandboxException, match="Workload identity is not supported"):
        await new_async_sandbox(iam={"tokens": {"aws": token}})


async def test_contexts_are_listed_async() -> None:
    async with await AsyncInterpreter.create() as sandbox:
        made = await sandbox.create_code_context()
        assert made.id in [context.id for context in await sandbox.list_code_contexts()]
