from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.kit.secret import Secret
from sandyard.platform.domain.repositories.errors import RemoteMissingError, RemoteRefusedError
from sandyard.platform.domain.repositories.model import Credential
from sandyard.platform.domain.repositories.remote import parse
from tests.integration.platform.domain.repositories.mirrored import Mirrored
from tests.integration.platform.domain.repositories.sshd import SSHD, Sshd, sshd

pytestmark = pytest.mark.skipif(SSHD is None, reason="there is no sshd here: scripts/system-packages tests brings it")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd") as made:
        yield made


async def test_a_key_opens_its_remote_both_ways(place: Mirrored, door: Sshd) -> None:
    remote = parse(door.url(place.site.path))
    credential = Credential(ssh_key=Secret(door.key.reveal().strip().replace("\n", "\r\n")))  # as it is pasted
    await place.mirror.refresh(remote, credential)
    assert await place.mirror.list_branches() == place.site.branches()
    commit = await place.brought({"a": "a"})
    await place.mirror.push(remote, credential, commit, "work", expected=None)
    assert place.site.head("work") == commit


async def test_the_key_is_on_no_disk_and_in_no_command_line(place: Mirrored, door: Sshd) -> None:
    """Looked at while ssh waits in the middle of a push, in a hook of the remote's."""
    remote, credential = parse(door.url(place.site.path)), Credential(ssh_key=door.key)
    await place.mirror.refresh(remote, credential)
    commit = await place.brought({"a": "a"})
    hook = place.site.path / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    reached, go = place.folder / "reached", place.folder / "go"
    hook.write_text(f"#!/bin/sh\ntouch {reached}\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")
    hook.chmod(0o755)
    pushing = asyncio.create_task(place.mirror.push(remote, credential, commit, "work", expected=None))
    async with asyncio.timeout(30):
        while not reached.exists() and not pushing.done():
            await asyncio.sleep(0.05)
    secret = door.key.reveal().splitlines()[2].encode()
    seen = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(door.port).encode() in words and b"ssh" in words:
            seen += 1
            assert secret not in words + variables
    assert seen >= 1, "ssh is running"
    for path in place.folder.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes()
    go.touch()
    await pushing
    assert place.site.head("work") == commit


async def test_no_key_or_another_key_is_refused(place: Mirrored, door: Sshd) -> None:
    """Also where the user the platform runs as has a key of their own: it is not the project's."""
    remote = parse(door.url(place.site.path))
    for credential in (None, Credential(ssh_key=Secret(door.make_key("other")))):
        with pytest.raises(RemoteRefusedError, match="credential"):
            await place.mirror.list_remote_branches(remote, credential)


async def test_a_key_that_cannot_be_read_says_so(place: Mirrored, door: Sshd) -> None:
    remote = parse(door.url(place.site.path))
    for text in ("not a key", door.make_key("locked", passphrase="hunter2hunter2")):
        with pytest.raises(RemoteRefusedError, match="cannot be read"):
            await place.mirror.list_remote_branches(remote, Credential(ssh_key=Secret(text)))


async def test_a_repository_that_is_not_there(place: Mirrored, door: Sshd) -> None:
    remote = parse(door.url(place.folder / "none.git"))
    with pytest.raises(RemoteMissingError):
        await place.mirror.list_remote_branches(remote, Credential(ssh_key=door.key))


async def test_a_host_with_another_key_than_before_is_not_believed(place: Mirrored, door: Sshd) -> None:
    remote, credential = parse(door.url(place.site.path)), Credential(ssh_key=door.key)
    await place.mirror.list_remote_branches(remote, credential)
    known = place.settings.git_dir / "known_hosts"
    assert str(door.port) in known.read_text()
    door.make_key("another_host")
    kind, text, *_ = (door.folder / "another_host.pub").read_text().split()
    known.write_text(f"[127.0.0.1]:{door.port} {kind} {text}\n")
    with pytest.raises(RemoteRefusedError, match="known_hosts"):
        await place.mirror.list_remote_branches(remote, credential)
