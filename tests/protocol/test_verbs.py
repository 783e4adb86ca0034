"""Test verbs that no other test calls: deprecated names, and verbs that only one of the SDKs has."""

from __future__ import annotations

import httpx
import pytest
from e2b import AsyncSandbox, AsyncSecret, CommandExitException, Sandbox, SandboxException, SandboxState, Secret
from e2b.sandbox.commands.command_handle import PtySize
from e2b_code_interpreter import AsyncSandbox as AsyncInterpreter

from tests.harness.engine import Engine

from .conftest import NewAsyncSandbox, NewSandbox
from .waiting import until_async


def test_the_deprecated_name_of_pause(sandbox: Sandbox) -> None:
    sandbox.beta_pause()
    assert Sandbox.get_info(sandbox.sandbox_id).state is SandboxState.PAUSED


async def test_the_deprecated_name_of_pause_async(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.beta_pause()
    assert (await AsyncSandbox.get_info(async_sandbox.sandbox_id)).state is SandboxState.PAUSED


def test_mcp_url_and_token(sandbox: Sandbox) -> None:
    assert sandbox.get_mcp_url() == f"https://{sandbox.get_host(50005)}/mcp"
    sandbox.files.write("/etc/mcp-gateway/.token", "of the gateway", user="root")
    assert sandbox.get_mcp_token() == "of the gateway"


async def test_mcp_url_and_token_async(async_sandbox: AsyncSandbox) -> None:
    assert async_sandbox.get_mcp_url() == f"https://{async_sandbox.get_host(50005)}/mcp"
    await async_sandbox.files.write("/etc/mcp-gateway/.token", "of the gateway", user="root")
    assert await async_sandbox.get_mcp_token() == "of the gateway"


def test_create_with_mcp_needs_the_gateway_template(new_sandbox: NewSandbox) -> None:
    with pytest.raises(SandboxException, match=r"mcp-gateway.*not found"):
        new_sandbox(mcp={"exa": {"apiKey": "x"}})


async def test_upload_and_download_urls_async(async_sandbox: AsyncSandbox, engine: Engine) -> None:
    upload = httpx.post(async_sandbox.upload_url("notes.txt"), files={"file": b"kept"})
    assert upload.status_code == 200, upload.text
    assert httpx.get(async_sandbox.download_url("notes.txt")).text == "kept"
    assert async_sandbox.download_url("notes.txt").startswith(engine.url)


async def test_list_snapshots_async(async_sandbox: AsyncSandbox) -> None:
    created = await async_sandbox.create_snapshot()
    try:
        pages = async_sandbox.list_snapshots()
        assert created.snapshot_id in [snapshot.snapshot_id for snapshot in await pages.next_items()]
        assert not pages.has_next
    finally:
        await AsyncSandbox.delete_snapshot(created.snapshot_id)


async def test_stream_input_arrives_in_order_async(async_sandbox: AsyncSandbox) -> None:
    command = await async_sandbox.commands.run("cat", background=True, stdin=True)
    async with async_sandbox.commands.stream_input(command.pid) as stream:
        for number in range(50):
            await stream.send(f"{number}\n")
    await async_sandbox.commands.close_stdin(command.pid)
    assert (await command.wait()).stdout.split() == [str(number) for number in range(50)]


async def test_reconnect_to_a_terminal_async(new_async_sandbox: NewAsyncSandbox) -> None:
    sandbox = await new_async_sandbox()
    shown: list[bytes] = []

    async def collect(data: bytes) -> None:
        shown.append(data)

    async def is_shown() -> bool:
        return b"sum 42" in b"".join(shown)

    terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=collect)
    await terminal.disconnect()
    connected = await sandbox.pty.connect(terminal.pid, on_data=collect)
    stream = sandbox.pty.stream_input(terminal.pid)
    await stream.send(b"echo sum $((6 * 7))\n")
    await until_async(is_shown)
    await stream.send(b"exit 3\n")
    await stream.close()
    with pytest.raises(CommandExitException) as caught:
        await connected.wait()
    assert caught.value.exit_code == 3


def test_workload_identity_is_refused(new_sandbox: NewSandbox) -> None:
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


async def test_list_code_contexts_async() -> None:
    async with await AsyncInterpreter.create() as sandbox:
        created = await sandbox.create_code_context()
        assert created.id in [context.id for context in await sandbox.list_code_contexts()]
