"""Volumes mounted in sandboxes, and what becomes of them when an engine is killed or only its API's address is known."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from e2b import AsyncSandbox, AsyncVolume, Sandbox, Volume
from e2b.exceptions import NotFoundException, SandboxException, VolumeException

from .conftest import NewAsyncSandbox, NewSandbox
from .engine import Engine
from .names import Names
from .test_tls import DOMAIN, Team, some_address
from .waiting import until


@pytest.fixture
def volume(unique: str) -> Iterator[Volume]:
    made = Volume.create(f"mounted-{unique}")
    yield made
    Volume.destroy(made.volume_id)


@pytest.fixture
async def async_volume(unique: str) -> AsyncIterator[AsyncVolume]:
    made = await AsyncVolume.create(f"mounted-{unique}")
    yield made
    await AsyncVolume.destroy(made.volume_id)


def test_it_persists_across_sandboxes(volume: Volume) -> None:
    for number in range(2):
        sandbox = Sandbox.create(volume_mounts={"/mnt/data": volume})
        try:
            if number == 0:
                sandbox.files.write("/mnt/data/hello.txt", "written by the first")
            assert sandbox.files.read("/mnt/data/hello.txt") == "written by the first"
            assert sandbox.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]
        finally:
            sandbox.kill()
    assert volume.read_file("/hello.txt") == "written by the first"
    assert volume.get_info("/hello.txt").uid == 1000


def test_several_sandboxes_at_once(volume: Volume, new_sandbox: NewSandbox) -> None:
    one = new_sandbox(volume_mounts={"/home/user/shared": volume})
    two = new_sandbox(volume_mounts={"/data": volume.name})
    volume.write_file("/from-outside", "out")
    assert one.commands.run("cat shared/from-outside").stdout == "out"
    one.commands.run("echo one > shared/file")
    assert two.commands.run("cat /data/file").stdout == "one\n"
    two.commands.run("echo two >> /data/file; sudo sh -c 'echo root > /data/roots'; mkdir /data/dir")
    assert one.commands.run("cat shared/file").stdout == "one\ntwo\n"
    assert one.commands.run("stat -c %U shared/roots shared/dir").stdout == "root\nuser\n"
    assert sorted(entry.name for entry in volume.list("/")) == ["dir", "file", "from-outside", "roots"]
    options = two.commands.run("findmnt -no OPTIONS /data").stdout
    assert {"rw", "nosuid", "nodev"} <= set(options.strip().split(","))


def test_traps_that_a_sandbox_lays(volume: Volume, new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(volume_mounts={"/data": volume})
    sandbox.commands.run(
        "cd /data; ln -s /etc/shadow link; ln -s ../../.. up; mkfifo pipe; ln -s /proc/self/root proc; ln -s loop loop"
    )
    kinds = {entry.name: (entry.type.value, entry.target) for entry in volume.list("/", depth=10)}
    assert kinds["link"] == ("symlink", "/etc/shadow")
    assert kinds["pipe"] == ("unknown", None)
    for path in ("/link", "/up/etc/passwd", "/proc/etc/passwd", "/loop", "/pipe"):
        with pytest.raises((VolumeException, NotFoundException)):
            volume.read_file(path)
    volume.remove("/up")
    assert sandbox.commands.run("ls /etc/shadow").exit_code == 0


def test_pause_resume_and_boot(volume: Volume, new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(volume_mounts={"/data": volume})
    sandbox.commands.run("echo before > /data/file")
    for memory in (True, False):
        sandbox.pause(keep_memory=memory)
        volume.write_file("/file", f"meanwhile {memory}", force=True)
        with pytest.raises(VolumeException, match=f"409.*{sandbox.sandbox_id}"):
            Volume.destroy(volume.volume_id)
        sandbox = sandbox.connect()
        assert sandbox.commands.run("cat /data/file").stdout == f"meanwhile {memory}"
        sandbox.commands.run("echo after > /data/mine && rm /data/mine")


def test_forks_share_and_snapshots_forget(volume: Volume, new_sandbox: NewSandbox, api: httpx.Client) -> None:
    sandbox = new_sandbox(volume_mounts={"/data": volume})
    sandbox.commands.run("echo 1 > /data/file")
    for count in (1, 2):
        for fork in sandbox.fork(count=count):
            assert isinstance(fork, Sandbox)
            fork.commands.run("echo fork >> /data/file")
            fork.kill()
    assert sandbox.commands.run("cat /data/file").stdout == "1\nfork\nfork\nfork\n"
    snapshot = sandbox.create_snapshot()
    bare = new_sandbox(snapshot.snapshot_id)
    assert bare.commands.run("ls -A /data").stdout == ""
    mounted = new_sandbox(snapshot.snapshot_id, volume_mounts={"/data": volume})
    assert mounted.commands.run("tail -n1 /data/file").stdout == "fork\n"
    api.delete(f"/templates/{snapshot.snapshot_id}")


def test_deleting_what_is_in_use(volume: Volume, unique: str) -> None:
    other = Volume.create(f"other-{unique}")
    sandbox = Sandbox.create(volume_mounts={"/data": other})
    with pytest.raises(VolumeException, match=f"409.*{sandbox.sandbox_id}"):
        Volume.destroy(other.volume_id)
    sandbox.kill()
    assert Volume.destroy(other.volume_id) is True


@pytest.mark.parametrize(
    ("mounts", "why"),
    [
        ({"/data": "no-such-volume"}, "not found"),
        ({"/data": "{name}", "/data/inner": "{name}"}, "nested"),
        ({"data": "{name}"}, "absolute"),
        ({"/": "{name}"}, "reserved"),
        ({"/proc/x": "{name}"}, "reserved"),
        ({"/a/../proc": "{name}"}, "must not contain"),
        ({"/etc/passwd": "{name}"}, "Not a directory"),
    ],
)
def test_mounts_that_cannot_be(volume: Volume, mounts: dict[str, str], why: str) -> None:
    wanted = {path: name.format(name=volume.name) for path, name in mounts.items()}
    with pytest.raises(SandboxException, match=f"400[^$]*{why}"):
        Sandbox.create(volume_mounts=wanted)
    assert Volume.destroy(volume.volume_id) is True, "nobody has it mounted"


async def test_async_mounts(async_volume: AsyncVolume, new_async_sandbox: NewAsyncSandbox) -> None:
    one, two = await asyncio.gather(
        *(new_async_sandbox(volume_mounts={"/data": async_volume}) for _ in range(2)),
    )
    await one.files.write("/data/file", "shared")
    assert await two.files.read("/data/file") == "shared"
    assert isinstance(one, AsyncSandbox)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_engine_that_is_killed(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Engine({"POOL_SIZE": "0", "VOLUME_SIZE_MB": "64"})
    own.start()
    try:
        for name, value in own.environment.items():
            monkeypatch.setenv(name, value)
        volume = Volume.create(unique)
        doomed = Volume.create(f"doomed-{unique}")
        sandbox = Sandbox.create(volume_mounts={"/data": volume})
        stopped = Sandbox.create(volume_mounts={"/data": volume})
        sandbox.commands.run("echo kept > /data/file")
        stopped.pause(keep_memory=False)
        Volume.destroy(doomed.volume_id)
        own.kill()
        own.start()
        assert volume.read_file("/file") == "kept\n"
        assert [one.name for one in Volume.list()] == [unique]
        sandbox.commands.run("echo again >> /data/file")
        assert stopped.connect().commands.run("cat /data/file").stdout == "kept\nagain\n"
        folder = own.data / "store" / "volumes"
        until(lambda: [path.name for path in folder.iterdir()] == [volume.volume_id])
        _fill(volume, sandbox)
        own.clear()
        until(lambda: not list(folder.iterdir()))
    finally:
        left = own.stop()
    assert not left


def _fill(volume: Volume, sandbox: Sandbox) -> None:
    """Where the store has quotas, a volume is full by itself, for clients and sandboxes alike."""
    kind = sandbox.commands.run("findmnt -no FSTYPE /data").stdout.strip()
    if kind != "btrfs":
        pytest.skip("the store has no quotas here")
    with pytest.raises(VolumeException, match="507"):
        volume.write_file("/big", io.BytesIO(bytes(100 << 20)))
    assert volume.exists("/big") is False
    with pytest.raises(Exception, match=r"quota|space"):
        sandbox.commands.run("dd if=/dev/zero of=/data/big bs=1M count=100")
    sandbox.commands.run("rm -f /data/big; echo room > /data/file")
    assert volume.read_file("/file") == "room\n"


# Without the variable -------------------------------------------------------------------------------------------------------

ALONE = """
import os
os.environ.pop("E2B_DOMAIN")
os.environ["E2B_API_URL"] = {url!r}
from e2b import Volume
volume = Volume.create({name!r})
volume.write_file("/file", "by its name")
print(volume.read_file("/file"), Volume.destroy(volume.volume_id))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(os.geteuid() != 0, reason="port 443, a name server and a mount namespace are root's")
def test_with_tls_the_address_of_the_api_is_enough(unique: str) -> None:
    address = some_address()
    own = Engine({"TLS_HOST": address, "TLS_PORT": "443", "DOMAIN": DOMAIN, "POOL_SIZE": "0"})
    names = Names(DOMAIN, address, address)
    try:
        own.start()
        team = Team(own, address, names)
        assert team.run(sys.executable, "-c", ALONE.format(url=own.url, name=unique)) == "by its name True\n"
    finally:
        names.close()
        own.stop()
