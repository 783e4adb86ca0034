"""Run inside a sandbox: start code-server unless it is running, and print its port.

    python3 -I -S -c … FOLDER

Prints one line of JSON: `port`, or `error` with a reason: `absent` (no code-server on the PATH) or its output before it exited. It listens
on loopback only and needs no password: everything in the sandbox runs as its user anyway, and from outside only the platform's preview
reaches it, which requires a login. Idempotent; code-server outlives this program. Standard library only, Python 3.6 or newer.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time

BASE = "/tmp/.sandyard"
FIRST_PORT, PORTS = 13337, 50
START_S = 45.0
SAID = 500
STEERING = (
    "PORT",
    "PASSWORD",
    "HASHED_PASSWORD",
    "CODE_SERVER_HOST",
    "CODE_SERVER_CONFIG",
)  # would override our arguments


def listens(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def known(path: str) -> "int | None":
    """Return the port of a running code-server."""
    try:
        with open(path) as file:
            pid, port = (int(word) for word in file.read().split())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return port if listens(port) else None


def free_port() -> int:
    for port in list(range(FIRST_PORT, FIRST_PORT + PORTS)) + [0]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as door:
            try:
                door.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(door.getsockname()[1])
    raise OSError("no port is free")


def begin(program: str, folder: str) -> "tuple[subprocess.Popen[bytes], int, str]":
    port, said = free_port(), os.path.join(folder, "said")
    words = [program, "--bind-addr", "127.0.0.1:%d" % port, "--auth", "none"]
    words += ["--disable-telemetry", "--disable-update-check"]
    with open(said, "wb") as log, open(os.devnull, "rb") as nothing:
        process = subprocess.Popen(
            words,
            stdin=nothing,
            stdout=log,
            stderr=log,
            cwd=os.path.expanduser("~"),
            env={name: value for name, value in os.environ.items() if name not in STEERING},
            start_new_session=True,
        )
    return process, port, said


def started(program: str, folder: str) -> int:
    """Start code-server. Raises OSError with the reason if it does not start."""
    process, port, said = begin(program, folder)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if listens(port):
            with open(os.path.join(folder, "running"), "w") as file:
                file.write("%d %d" % (process.pid, port))
            return port
        if process.poll() is not None:
            break
        time.sleep(0.05)
    else:
        process.kill()
    with open(said, "rb") as file:
        text = file.read()[-SAID:].decode("utf-8", "replace").strip()
    raise OSError(text or "it did not begin to listen in time")


def main() -> "dict[str, object]":
    program = shutil.which("code-server")
    if program is None:
        return {"error": "absent"}
    try:
        folder = os.path.join(BASE, "editor-%d" % os.geteuid())
        os.makedirs(folder, exist_ok=True)
        if os.stat(BASE).st_uid == os.geteuid():
            os.chmod(BASE, 0o1777)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return {"port": known(os.path.join(folder, "running")) or started(program, folder)}
    except OSError as error:
        return {"error": str(error) or "it could not be started"}


if __name__ == "__main__":
    print(json.dumps(main()))
    sys.stdout.flush()
    os._exit(0)
