"""A separate PostgreSQL server for tests: started once, with a new database for each test, and removed afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from sandyard.kit.listen import free_port

OLDEST = 14  # the version of Ubuntu 22.04; Sandyard supports 15 and newer
START_SECONDS = 60
STOP_SECONDS = 30
_OPTIONS = "fsync=off full_page_writes=off max_connections=200 shared_buffers=64MB".split()
"""Without fsync, a power failure loses commits, but killing the server, as tests do, loses none."""
_PR_SET_PDEATHSIG = 1


def binaries() -> Path | None:
    """Return the directory of the newest supported server."""
    folders = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    found = [(int(path.parent.name), path) for path in folders if (path / "initdb").exists()]
    with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError):
        folder = Path(subprocess.check_output(["pg_config", "--bindir"], text=True).strip())
        words = subprocess.check_output([str(folder / "postgres"), "--version"], text=True)
        found.append((int(words.split()[2].partition(".")[0]), folder))
    found = [(version, folder) for version, folder in found if version >= OLDEST]
    return max(found)[1] if found else None


@dataclass
class Server:
    """One `postgres` process on a loopback port and a socket, without the durability that tests do not need."""

    bin: Path
    password: str = field(default_factory=lambda: secrets.token_hex(16))
    port: int = 0

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sandyard-pg-", dir="/tmp"))
        self.account = None if os.geteuid() else _find_account()
        self.process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://sandyard:{self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        try:
            (self.folder / "password").write_text(self.password)
            if self.account is not None:
                for path in (self.folder, self.folder / "password"):
                    shutil.chown(path, self.account.pw_uid, self.account.pw_gid)
            options = "--no-sync --locale=C --encoding=UTF8 --auth=password --username=sandyard --pwfile=password"
            self._run("initdb", "--pgdata=data", *options.split()).wait(START_SECONDS)
            self._serve()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and remove its directory. Idempotent."""
        process, self.process = self.process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)  # fast: connections are closed
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)
                process.wait(STOP_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def halt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and keep its data and port for `resume`. SIGINT: connections are closed properly; SIGQUIT: as in a crash."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(STOP_SECONDS)

    def resume(self, *, wait: bool = True) -> None:
        """Start the server again and wait until it accepts connections. Call it from the main thread: the server ends with that thread."""
        self.process = self._launch()
        if wait and not self._is_ready(self.process):
            raise RuntimeError(f"PostgreSQL did not start again:\n{self._log()}")

    async def create(self, template: str = "template1") -> str:
        """Create a database, empty or as a copy of `template`, and return its name. The template must have no connections."""
        name = f"{template if template != 'template1' else 'test'}_{next(self._names)}"
        await self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    async def drop(self, name: str) -> None:
        await self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    async def execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url(), timeout=START_SECONDS)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def _serve(self) -> None:
        for _ in range(5):  # another process may take the port before the server binds it
            self.port = free_port()
            self.process = self._launch()
            if self._is_ready(self.process):
                return
        raise RuntimeError(f"PostgreSQL did not start:\n{self._log()}")

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = [*_OPTIONS, f"port={self.port}", "listen_addresses=127.0.0.1"]
        settings.append(f"unix_socket_directories={self.folder}")
        return self._run("postgres", "-D", "data", *(f"--{setting}" for setting in settings))

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with ThreadPoolExecutor(1) as thread:  # the caller may run in an event loop
                    thread.submit(asyncio.run, self.execute("SELECT 1")).result()
            except (OSError, asyncpg.PostgresError):
                time.sleep(0.05)
            else:
                return True
        return False

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        account = self.account
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self.bin / program), *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(self.folder)},
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one call into libc, without our locks
            )

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]


def _find_account() -> pwd.struct_passwd:
    """PostgreSQL refuses to run as root."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("root may not run PostgreSQL, and there is neither a user postgres nor nobody")


def die_with_parent() -> None:
    """For `preexec_fn`: the program is interrupted when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server. `make test` installs PostgreSQL; without it, the test is skipped."""
    found = binaries()
    if found is None:
        pytest.skip(f"there is no PostgreSQL {OLDEST} or newer: apt-get install postgresql")
    server = Server(found)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def postgres_url(postgres: Server) -> AsyncIterator[str]:
    """URL of a separate empty database for this test."""
    name = await postgres.create()
    yield postgres.url(name)
    await postgres.drop(name)
