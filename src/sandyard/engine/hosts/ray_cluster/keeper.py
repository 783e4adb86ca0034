"""The actor on a node of Ray that lets the machine join, and keeps its host service running.

The host service is not a child of the actor. Ray ends its workers, with their children, when a node is declared dead or the head of
the cluster is away; sandboxes and the engine's connections to them must not be affected. A new actor finds the running service.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from sandyard.engine.hosts import joining
from sandyard.engine.hosts.authority import compute_fingerprint
from sandyard.engine.hosts.identity import HostIdentity
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.hosts.ray_cluster.messages import NOT_JOINED, StartRequest, describe_error
from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.python import SAFE_FOLDER, make_bare_python_command, make_python_command, make_python_environment
from sandyard.kit.settings import get_default_data_dir

START_S = 60.0
"""How long a host service may take to start listening."""
STOP_S = 30.0
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
SHORT_LIFE_S = 30.0
"""A service that ends earlier has failed: the pause before the next start is doubled."""
MAX_LOG_BYTES = 10 << 20
_LOG_LINES = 3

LAUNCHER = """
import os, signal, sys
log, *command = sys.argv[1:]
os.setsid()
signal.pthread_sigmask(signal.SIG_SETMASK, [])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(number, signal.SIG_DFL)
try:
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")
except OSError:
    pass
if (pid := os.fork()):
    print(pid, flush=True)
    os._exit(0)
output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
os.dup2(output, 1)
os.dup2(output, 2)
os.execv(command[0], command)
"""
"""Starts a command that outlives its parent, and prints its process id. Undoes what Ray does to its workers: it lowers their
priority, and makes the kernel end them first when memory runs out."""


class Keeper:
    """The actor. Its methods take and return text, and raise nothing: the sidecar may be another release."""

    def __init__(self, address: str) -> None:
        """`address`: the address of this machine on which the host service listens."""
        self._address = address
        self._data_dir = get_data_dir()
        self._identity = HostIdentity(self._data_dir)
        self._lock = threading.Lock()
        self._wake = threading.Event()  # set when it is worth trying to start the service now
        self._thread: threading.Thread | None = None
        self._listening: int | None = None  # process id of the service, once it has accepted a connection
        self._problem: str | None = None  # why the service could not be started
        if self._identity.find() is not None:  # Ray has started this actor again
            self._start_thread()

    def start(self, text: str) -> str:
        """Handle an encoded `StartRequest`. Idempotent. Return as soon as the host service listens, or has failed."""
        try:
            with self._lock:
                return json.dumps(self._start(StartRequest.parse(text)))
        except (SandyardError, OSError, ValueError) as error:
            return json.dumps(describe_error(error))

    def _start(self, request: StartRequest) -> Mapping[str, str]:
        known = self._identity.find()
        if known is not None and compute_fingerprint(self._identity.authority_path.read_bytes()) != request.fingerprint:
            raise ConflictError(
                f"This machine has joined another engine, at {known.engine}. Run `sandyard host leave` on it first."
            )
        if request.token is not None:
            joined = joining.join(
                JoinToken.parse(request.token),
                self._identity,
                name=request.name,
                address=request.address,
                port=request.port,
                labels={},
            )
            if known is not None and (known.id, known.port) != (joined.id, joined.port):
                stop_service(self._data_dir)  # it still uses the former id and port
        elif known is None:
            return {NOT_JOINED: "yes"}
        self._start_thread()
        self._wake.set()
        self._wait_until_listening()
        return {"host": self._identity.get().id}

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_running, name="keep-running", daemon=True)
            self._thread.start()

    def _wait_until_listening(self) -> None:
        address, port = self._address, self._identity.get().port
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            pid = find_service(self._data_dir)
            if pid is not None:
                if pid == self._listening:
                    return
                try:
                    socket.create_connection((address, port), timeout=1).close()
                except OSError:
                    pass
                else:
                    self._listening = pid
                    return
            time.sleep(0.5)
        log = get_log(self._data_dir)
        raise SandyardError(
            f"The host service does not listen on {address}:{port}: "
            + (self._problem or f"its log {log} ends with: {read_end(log)}")
        )

    def _keep_running(self) -> None:
        """Start the service whenever it is not running, while this machine is a host."""
        pause = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                if self._identity.find() is not None:  # otherwise it has left the engine
                    pid = find_service(self._data_dir) or self._launch()
                    self._problem = None
                    wait_for_end(pid)
            except (SandyardError, OSError, subprocess.SubprocessError, ValueError) as error:
                self._problem = str(error)
            pause = min(2 * pause, MAX_PAUSE_S) if time.monotonic() - began < SHORT_LIFE_S else FIRST_PAUSE_S
            self._wake.wait(pause)
            self._wake.clear()

    def _launch(self) -> int:
        """Start the service, and return its process id."""
        log = get_log(self._data_dir)
        if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
            log.rename(log.with_suffix(".log.1"))
        # --lan deny: sandboxes could otherwise reach the ports of Ray on other machines
        arguments = ("serve", "--listen", self._address, "--lan", "deny", "--data-dir", str(self._data_dir))
        command = make_python_command("sandyard", "host", *arguments)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        done = subprocess.run(
            [*make_bare_python_command("-c", LAUNCHER), str(log), *command],
            cwd=SAFE_FOLDER,
            env=make_python_environment(inherited),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_S,
            check=True,
        )
        return int(done.stdout)


def get_data_dir() -> Path:
    """Return the data directory of the host service on this machine."""
    given = os.environ.get("SANDYARD_DATA_DIR")
    return Path(given) if given else get_default_data_dir() / "host"


def get_log(data_dir: Path) -> Path:
    return data_dir / "service.log"


def find_service(data_dir: Path) -> int | None:
    """Return the process id of the running host service with this data directory, or None. It holds the directory's lock, whoever
    started it."""
    try:
        descriptor = os.open(data_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        content = os.pread(descriptor, 32, 0).strip()
        return int(content) if content.isdigit() else None
    finally:
        os.close(descriptor)
    return None


def stop_service(data_dir: Path) -> None:
    """End the host service with this data directory, if one runs. Sandboxes keep running."""
    if (pid := find_service(data_dir)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_for_end(pid, STOP_S)


def wait_for_end(pid: int, timeout_s: float | None = None) -> None:
    """Wait until a process that is not a child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)


def read_end(log: Path) -> str:
    """Return the last lines of a log, or why it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"({error.strerror})"
    return " / ".join(line.strip() for line in lines[-_LOG_LINES:])
