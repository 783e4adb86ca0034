from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.kit.secret import Secret
from sandyard.platform.domain.repositories.errors import RemoteMissingError, RemoteRefusedError
from sandyard.platform.domain.repositories.model import Credential
from sandyard.platform.domain.repositories.remote import parse_remote
from tests.integration.platform.domain.repositories.mirrored import MirrorHarness
from tests.integration.platform.domain.repositories.sshd import SSHD, Sshd, sshd

pytestmark = pytest.mark.skipif(SSHD is None, reason="sshd is not installed: run scripts/system-packages tests")


@pytest.fixture
def ssh_server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd") as opened:
        yield opened


async def test_a_key_allows_fetching_and_pushing(harness: MirrorHarness, ssh_server: Sshd) -> None:
    remote = parse_remote(ssh_server.url(harness.site.path))
    # as pasted by a user
    credential = Credential(ssh_key=Secret(ssh_server.key.reveal().strip().replace("\n", "\r\n")))
    await harness.mirror.refresh(remote, credential)
    assert await harness.mirror.list_branches() == harness.site.branches()
    commit = await harness.import_commit({"a": "a"})
    await harness.mirror.push(remote, credential, commit, "work", expected=None)
    assert harness.site.head("work") == commit


async def test_the_key_is_in_no_file_and_no_command_line(harness: MirrorHarness, ssh_server: Sshd) -> None:
    """Checked while ssh waits in the middle of a push, in a hook of the remote."""
    remote, credential = parse_remote(ssh_server.url(harness.site.path)), Credential(ssh_key=ssh_server.key)
    await harness.mirror.refresh(remote, credential)
    commit = await harness.import_commit({"a": "a"})
    hook = harness.site.path / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    reached, proceed = harness.folder / "reached", harness.folder / "go"
    hook.write_text(f"#!/bin/sh\ntouch {reached}\nwhile [ ! -e {proceed} ]; do sleep 0.05; done\n")
    hook.chmod(0o755)
    pushing = asyncio.create_task(harness.mirror.push(remote, credential, commit, "work", expected=None))
    async with asyncio.timeout(30):
        while not reached.exists() and not pushing.done():
            await asyncio.sleep(0.05)
    secret = ssh_server.key.reveal().splitlines()[2].encode()
    seen = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(ssh_server.port).encode() in words and b"ssh" in words:
            seen += 1
            assert secret not in words + variables
    assert seen >= 1, "ssh is running"
    for path in harness.folder.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes()
    proceed.touch()
    await pushing
    assert harness.site.head("work") == commit


async def test_a_missing_or_wrong_key_is_refused(harness: MirrorHarness, ssh_server: Sshd) -> None:
    """Even if the user that runs the platform has an own key: that key does not belong to the project."""
    remote = parse_remote(ssh_server.url(harness.site.path))
    for credential in (None, Credential(ssh_key=Secret(ssh_server.make_key("other")))):
        with pytest.raises(RemoteRefusedError, match="credential"):
            await harness.mirror.list_remote_branches(remote, credential)


async def test_an_unreadable_key_is_reported(harness: MirrorHarness, ssh_server: Sshd) -> None:
    remote = parse_remote(ssh_server.url(harness.site.path))
    for text in ("not a key", ssh_server.make_key("locked", passphrase="hunter2hunter2")):
        with pytest.raises(RemoteRefusedError, match="cannot be read"):
            await harness.mirror.list_remote_branches(remote, Credential(ssh_key=Secret(text)))


async def test_a_missing_repository_is_reported(harness: MirrorHarness, ssh_server: Sshd) -> None:
    remote = parse_remote(ssh_server.url(harness.folder / "none.git"))
    with pytest.raises(RemoteMissingError):
        await harness.mirror.list_remote_branches(remote, Credential(ssh_key=ssh_server.key))


async def test_a_changed_host_key_is_refused(harness: MirrorHarness, ssh_server: Sshd) -> None:
    remote, credential = parse_remote(ssh_server.url(harness.site.path)), Credential(ssh_key=ssh_server.key)
    await harness.mirror.list_remote_branches(remote, credential)
    known = harness.settings.git_dir / "known_hosts"
    assert str(ssh_server.port) in known.read_text()
    ssh_server.make_key("another_host")
    kind, text, *_ = (ssh_server.folder / "another_host.pub").read_text().split()
    known.write_text(f"[127.0.0.1]:{ssh_server.port} {kind} {text}\n")
    with pytest.raises(RemoteRefusedError, match="known_hosts"):
        await harness.mirror.list_remote_branches(remote, credential)
