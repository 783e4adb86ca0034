"""Bare machines: the root file system of a distribution with Python and git and nothing else, like a newly installed one.

A root is built once by mmdebstrap and kept in .cache. A machine has its own copy of it, and its own processes, mounts and network: the
firewall rules of a later release's nftables make the nftables of Debian 12 crash. Commands that install something use this machine's
network and its configuration of package archives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.engine import SCRATCH
from tests.harness.processes import ROOT, Running

CACHE = ROOT / ".cache" / "bare-machines"
PACKAGES = "git,python3,python3-venv,ca-certificates"
UBUNTU_KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
BUILD_SECONDS = 900
COMMAND_SECONDS = 600
MIN_FREE_BYTES = 15 << 30
CONFIGURATION = (
    *("etc/apt/apt.conf.d", "etc/pip.conf", "etc/npmrc", "etc/resolv.conf", "etc/hosts"),
    "etc/ssl/certs/ca-certificates.crt",
)
"""How this machine reaches package archives. Of apt's settings, only those that no package brings are copied."""
VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "http_proxy", "https_proxy", "no_proxy")
USER = "newcomer"
PATH = "/opt/sandyard/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START = """
set -e
ip link set lo up
ip link add uplink type veth peer name upstream
ip address add 192.0.2.2/24 dev uplink
ip link set uplink up
ip link set upstream up
ip route add default via 192.0.2.1
mount --bind "$1" "$1"
mount --rbind /dev "$1/dev"; mount --rbind /sys "$1/sys"; mount -t proc proc "$1/proc"; mount -t tmpfs tmpfs "$1/run"
mkdir -p "$1/.old"; cd "$1"; pivot_root . .old; umount -l /.old; cd /  # a chroot may not create user namespaces
echo ready
sleep infinity & wait
"""


@dataclass(frozen=True)
class Distribution:
    name: str
    suite: str
    components: str = "main"

    @property
    def is_ubuntu(self) -> bool:
        return self.name.startswith("Ubuntu")


DEBIAN_12 = Distribution("Debian 12", "bookworm")
DEBIAN_13 = Distribution("Debian 13", "trixie")
UBUNTU_24 = Distribution("Ubuntu 24.04", "noble", "main,universe")


def get_root_archive(distribution: Distribution) -> Path:
    """Return the archive with the root of a distribution, and build it if it is missing. Skips the test if that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap")
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / f"{distribution.suite}.tar"
    with (CACHE / f"{distribution.suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            if shutil.disk_usage(CACHE).free < MIN_FREE_BYTES:
                pytest.skip(f"a root of {distribution.name} needs {MIN_FREE_BYTES >> 30} GiB of free disk space")
            partial = archive.with_suffix(".partial")
            options = [f"--components={distribution.components}", f"--include={PACKAGES}", "--variant=important"]
            if distribution.is_ubuntu:
                options.append(f"--keyring={_get_ubuntu_keyring()}")
            _bootstrap(distribution, "--format=tar", *options, distribution.suite, str(partial))
            partial.rename(archive)
    return archive


def _get_ubuntu_keyring() -> Path:
    """Return Ubuntu's keyring: this machine's, or that of the package of Debian 13."""
    for keyring in (Path("/", UBUNTU_KEYRING), CACHE / "ubuntu-keyring" / UBUNTU_KEYRING):
        if keyring.exists():
            return keyring
    folder = CACHE / "ubuntu-keyring"
    shutil.rmtree(folder, ignore_errors=True)
    options = ("--variant=extract", "--include=ubuntu-keyring", "--format=directory")
    _bootstrap(DEBIAN_13, *options, DEBIAN_13.suite, str(folder))
    return folder / UBUNTU_KEYRING


def _bootstrap(distribution: Distribution, *arguments: str) -> None:
    command = ["mmdebstrap", "--quiet", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{distribution.name} could not be downloaded within {BUILD_SECONDS} s")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
        pytest.skip(f"{distribution.name} could not be downloaded: {errors[:1] or done.stderr[-300:]}")


class BareMachine:
    def __init__(self, distribution: Distribution) -> None:
        archive = get_root_archive(distribution)
        self.root = Path(tempfile.mkdtemp(prefix=f"sandyard-{distribution.suite}-", dir=SCRATCH))
        self.root.chmod(0o755)
        subprocess.run(["tar", "-xf", str(archive), "-C", str(self.root), "--exclude=./dev/*"], check=True)
        _copy_configuration(self.root)
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
        ]
        self._unshare = subprocess.Popen(
            [*command, "bash", "-c", START, "_", str(self.root)], stdout=subprocess.PIPE, text=True
        )
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != "ready\n":
            shutil.rmtree(self.root)
            raise AssertionError(f"the machine did not start: exit code {self._unshare.wait()}")
        self._first = _get_child(self._unshare.pid)
        try:
            self.run(["useradd", "--create-home", USER])
        except BaseException:
            self.close()
            raise

    def command(self, words: Sequence[str], *, user: str = "root", online: bool = False, **variables: str) -> list[str]:
        """Return the command that runs `words` in the machine, with a clean environment. `online`: in this machine's network."""
        home = "/root" if user == "root" else f"/home/{user}"
        environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        environment |= {"HOME": home, "PATH": PATH, "LANG": "C.UTF-8", "PIP_DEFAULT_TIMEOUT": "180", "COLUMNS": "200"}
        environment |= {"DEBIAN_FRONTEND": "noninteractive", "SSL_CERT_FILE": f"/{CONFIGURATION[-1]}", **variables}
        enter = ["nsenter", "--target", str(self._first), "--mount", "--pid", *(() if online else ("--net",))]
        change = [] if user == "root" else ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]
        return [*enter, "env", "-i", *(f"{name}={value}" for name, value in environment.items()), *change, *words]

    def run(self, words: Sequence[str], *, user: str = "root", online: bool = False, **variables: str) -> str:
        """Run a command that must succeed. Returns its output."""
        command = self.command(words, user=user, online=online, **variables)
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    @contextlib.contextmanager
    def running(self, words: Sequence[str], *, user: str = "root", **variables: str) -> Iterator[Running]:
        """Run a command until the end of the block, and then send it SIGTERM."""
        marker = f"SANDYARD_TEST_RUN={secrets.token_hex(8)}"  # by which `close` finds the processes
        running = Running(self.command(["env", marker, *words], user=user, **variables), marker)
        try:
            yield running
            _terminate(running)
            running.wait_for_exit(60)
        finally:
            running.close()

    def close(self) -> None:
        """Kill all processes of the machine, and remove its files and cgroups."""
        names = [json.loads(path.read_text())["name"] for path in self._find_instances()]
        os.kill(self._first, 9)
        self._unshare.wait()
        assert self._unshare.stdout is not None
        self._unshare.stdout.close()
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                if str(self.root) in backing.read_text():
                    subprocess.run(["losetup", "-d", f"/dev/{backing.parts[-3]}"], check=False)
        for name in names:
            for group in Path("/sys/fs/cgroup").glob(f"**/sandyard-{name}"):
                subprocess.run(["find", str(group), "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"], check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def _find_instances(self) -> list[Path]:
        folders = (self.root / "var/lib/sandyard", self.root / f"home/{USER}/.local/share/sandyard")
        return [path for folder in folders if (path := folder / "engine/instance.json").exists()]


def _copy_configuration(root: Path) -> None:
    for name in CONFIGURATION:
        source, target = Path("/", name), root / name
        if source.is_dir():
            for file in source.iterdir():
                if not (target / file.name).exists() and file.name.startswith("99"):
                    shutil.copy(file, target / file.name)
        elif source.exists():
            target.unlink(missing_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def _get_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _terminate(running: Running) -> None:
    """Send SIGTERM to the command inside: nsenter waits for it and passes no signals on."""
    with contextlib.suppress(OSError, IndexError):
        os.kill(_get_child(running.process.pid), 15)
