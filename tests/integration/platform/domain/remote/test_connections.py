"""SSH connections into a real sandbox: access, limits and what keeps it awake; and editors."""

from __future__ import annotations

import asyncio

import pytest

from sandyard.kit.errors import InvalidInputError, NotFoundError
from sandyard.platform.db.models import Checkout
from sandyard.platform.domain.remote import connections
from sandyard.platform.domain.remote.connections import (
    SshConnection,
    SshConnections,
    SshSandboxPausedError,
    TooManyConnectionsError,
    check_public_key,
)
from sandyard.platform.domain.remote.service import EditorFailedError, NoEditorError
from sandyard.platform.domain.remote.ssh_channel import NoSshdError
from sandyard.platform.domain.sandboxes.model import SandboxDestroyedError, utc_now
from tests.integration.platform.domain.sandboxes.platform_harness import DEADLINE, PlatformHarness, until

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJgDP0xkM2lc0nC4cYqUIiN5MDV5cLgCGgZ4hSdKYNwq"


async def read_banner(connection: SshConnection) -> bytes:
    received = b""
    async with asyncio.timeout(DEADLINE):
        while b"\n" not in received:
            piece = await connection.receive()
            assert piece is not None, connection.reason
            received += piece
    return received


async def test_each_connection_gets_its_own_sshd(platform: PlatformHarness) -> None:
    ssh, row = platform.services.remotes.ssh, await platform.create_sandbox()
    async with ssh.open(platform.owner, row.id, KEY) as one, ssh.open(platform.owner, row.id, KEY) as other:
        assert (await read_banner(one)).startswith(b"SSH-2.0-OpenSSH")
        assert (await read_banner(other)).startswith(b"SSH-2.0-OpenSSH")
        assert one.host_key == other.host_key, "a sandbox has one host key"
        # no listening port, and no file besides the host key and the lock
        assert "LISTEN" not in await platform.run(row, "ss -ltn | tail -n +2")
        assert await platform.run(row, "ls /tmp/.sandyard/ssh-1000 | grep -v host- | sort") == "lock\n"
    assert await until(lambda: has_no_sshd(platform, row), "sshd ends")
    fork = await platform.services.sandboxes.fork(platform.owner, row.id)
    async with ssh.open(platform.owner, fork.id, KEY) as copy:
        assert copy.host_key != one.host_key, "a copy has its own host key"


async def has_no_sshd(platform: PlatformHarness, row: object) -> bool:
    return "sshd" not in await platform.run(row, "ps ax -o comm")  # type: ignore[arg-type]


async def test_connections_are_authorized_and_limited(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, row = platform.services.remotes.ssh, await platform.create_sandbox()
    stranger = await platform.create_person("stranger")
    with pytest.raises(NotFoundError):
        async with ssh.open(stranger, row.id, KEY):
            pass
    with pytest.raises(InvalidInputError):
        async with ssh.open(platform.owner, row.id, 'command="evil" ' + KEY):
            pass
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    async with ssh.open(platform.owner, row.id, KEY) as connection:
        with pytest.raises(TooManyConnectionsError):
            async with ssh.open(platform.owner, row.id, KEY):
                pass
        with pytest.raises(NotFoundError):
            await connection.check(stranger)
        await connection.check(platform.owner)
        await read_banner(connection)
        await platform.services.sandboxes.destroy_sandbox(platform.owner, row.id)
        await connection.check(platform.owner)
        with pytest.raises(SandboxDestroyedError):
            await connection.receive()
    assert not ssh.open_connections


async def test_only_traffic_keeps_the_sandbox_awake(platform: PlatformHarness) -> None:
    ssh, row = platform.services.remotes.ssh, await platform.create_sandbox(idle_seconds=60)
    async with ssh.open(platform.owner, row.id, KEY) as connection:
        await read_banner(connection)
        platform.clock.advance(100)
        await connection.send(b"SSH-2.0-Test\r\n")
        await platform.finish_round(platform.services.maintenance.pause_idle())
        assert (await platform.reload(row)).status == "running"
        while len(await connection.receive() or b"") < 100:  # the reply of sshd
            pass
        platform.clock.advance(100)
        await platform.finish_round(platform.services.maintenance.pause_idle())
        assert (await platform.reload(row)).status == "paused"
        await connection.check(platform.owner)
        with pytest.raises(SshSandboxPausedError):
            await connection.receive()
    async with SshConnections(platform.services.lifecycle).open(platform.owner, row.id, KEY) as connection:
        assert (await platform.reload(row)).status == "running"
        await read_banner(connection)


async def test_a_missing_sshd_is_reported_with_what_to_install(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    await platform.run(row, "sudo rm /usr/sbin/sshd")
    with pytest.raises(NoSshdError, match="apt-get install -y --no-install-recommends openssh-server"):
        async with platform.services.remotes.ssh.open(platform.owner, row.id, KEY):
            pass


def test_public_keys_are_validated() -> None:
    assert check_public_key(f"  {KEY} me@home\n") == KEY
    for wrong in ("", "ssh-ed25519", "ssh-ed25519 AAAA", KEY.replace("ed25519", "rsa", 1), f"ssh-dss {KEY.split()[1]}"):
        with pytest.raises(InvalidInputError):
            check_public_key(wrong)


CODE_SERVER = """#!/bin/sh
test -n "$BROKEN" && { echo "it is broken"; exit 1; }
[ "$1" = --bind-addr ] && [ "$3 $4" = "--auth none" ] || exit 2
exec python3 -m http.server "${2##*:}" --bind "${2%%:*}"
"""


async def test_code_server_is_started_once(platform: PlatformHarness) -> None:
    remotes, lifecycle = platform.services.remotes, platform.services.lifecycle
    session, row = await platform.services.sessions.create(platform.owner, title="work")
    row = await lifecycle.wait_until_provisioned(row.id)
    with pytest.raises(NoEditorError):
        await remotes.open_editor(platform.owner, row.id)
    found = await remotes.get_for_session(platform.owner, session.id)
    assert (found.ssh_available, found.editor_available, found.folder) == (True, False, "/home/user")

    script = f"cat > /usr/local/bin/code-server <<'E'\n{CODE_SERVER}E\nchmod +x /usr/local/bin/code-server"
    await platform.run(row, script)
    first, second = await asyncio.gather(
        remotes.open_editor(platform.owner, row.id), remotes.open_editor(platform.owner, row.id)
    )
    assert first == second == await remotes.open_editor(platform.owner, row.id)
    assert first.path == "/?folder=/home/user"
    listening = await platform.run(row, "ss -ltn | awk 'NR > 1 {print $4}'")
    assert listening == f"127.0.0.1:{first.port}\n"
    assert (await remotes.get_for_session(platform.owner, session.id)).editor_available is True

    await platform.run(
        row, "pkill -f '[h]ttp.server'; sed -i 's/^test -n .*BROKEN. /true /' /usr/local/bin/code-server"
    )
    with pytest.raises(EditorFailedError, match="it is broken"):
        await remotes.open_editor(platform.owner, row.id)
    stranger = await platform.create_person("stranger")
    with pytest.raises(NotFoundError):
        await remotes.open_editor(stranger, row.id)
    with pytest.raises(NotFoundError):
        await remotes.get_for_session(stranger, session.id)


async def test_connection_details_are_read_without_resuming_the_sandbox(platform: PlatformHarness) -> None:
    session, row = await platform.services.sessions.create(platform.owner, title="work")
    await platform.services.lifecycle.wait_until_provisioned(row.id)
    project = await platform.project(platform.owner)
    now = utc_now()
    where = {"branch": "b", "base_branch": "main", "base_commit": "1" * 40, "head": "1" * 40}
    async with platform.services.database.transaction() as tx:
        folder = "/home/user/my work"
        tx.add(Checkout(sandbox_id=row.id, project_id=project, folder=folder, created_at=now, updated_at=now, **where))
    await platform.services.sandboxes.pause(platform.owner, row.id)
    found = await platform.services.remotes.get_for_session(platform.owner, session.id)
    assert (found.ssh_available, found.editor_available) == (None, None)
    assert found.vscode_url == f"vscode://vscode-remote/ssh-remote+{session.id}.sandyard/home/user/my%20work"
    assert found.code_command == f"code --remote ssh-remote+{session.id}.sandyard '/home/user/my work'"
    assert (await platform.reload(row)).status == "paused"
    await platform.services.sandboxes.resume(platform.owner, row.id)
    known = await platform.services.remotes.get_for_session(platform.owner, session.id)
    assert known.editor_available is False
    await platform.services.sandboxes.pause(platform.owner, row.id)
    found = await platform.services.remotes.get_for_session(platform.owner, session.id)
    assert (found.ssh_available, found.editor_available) == (known.ssh_available, False)
