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
FIRST_PORT, PORT_COUNT = 13337, 50
START_S = 45.0
MAX_ERROR_LENGTH = 500
# environment variables that would override our arguments
OVERRIDING_VARIABLES = (
    "PORT",
    "PASSWORD",
    "HASHED_PASSWORD",
    "CODE_SERVER_HOST",
    "CODE_SERVER_CONFIG",
)


def is_listening(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def read_running_port(path: str) -> "int | None":
    """Return the port in this file if its code-server is still running."""
    try:
        with open(path) as file:
            pid, port = (int(word) for word in file.read().split())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return port if is_listening(port) else None


def find_free_port() -> int:
    for port in list(range(FIRST_PORT, FIRST_PORT + PORT_COUNT)) + [0]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port is free")


def start_process(program: str, folder: str) -> "tuple[subprocess.Popen[bytes], int, str]":
    port, log_path = find_free_port(), os.path.join(folder, "said")
    words = [program, "--bind-addr", "127.0.0.1:%d" % port, "--auth", "none"]
    words += ["--disable-telemetry", "--disable-update-check"]
    with open(log_path, "wb") as log, open(os.devnull, "rb") as nothing:
        process = subprocess.Popen(
            words,
            stdin=nothing,
            stdout=log,
            stderr=log,
            cwd=os.path.expanduser("~"),
            env={name: value for name, value in os.environ.items() if name not in OVERRIDING_VARIABLES},
            start_new_session=True,
        )
    return process, port, log_path


def start_code_server(program: str, folder: str) -> int:
    """Start code-server and return its port when it listens. Raises OSError with the reason if it does not."""
    process, port, log_path = start_process(program, folder)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if is_listening(port):
            with open(os.path.join(folder, "running"), "w") as file:
                file.write("%d %d" % (process.pid, port))
            return port
        if process.poll() is not None:
            break
        time.sleep(0.05)
    else:
        process.kill()
    with open(log_path, "rb") as file:
        text = file.read()[-MAX_ERROR_LENGTH:].decode("utf-8", "replace").strip()
    raise OSError(text or "it did not listen on its port in time")


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
        return {"port": read_running_port(os.path.join(folder, "running")) or start_code_server(program, folder)}
    except OSError as error:
        return {"error": str(error) or "it could not be started"}


if __name__ == "__main__":
    print(json.dumps(main()))
    sys.stdout.flush()
    os._exit(0)
