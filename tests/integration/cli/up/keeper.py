"""`sandyard up` without engine and platform: the real supervisor over two small servers, so that its tests are fast.

python -m tests.integration.cli.up.keeper up DATA_DIR [stubborn|broken|patient]
python -m tests.integration.cli.up.keeper serve NAME PORT
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from sandyard.cli.up import child, lifeline
from sandyard.cli.up.child import Child
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.cli.up.health import choose_port
from sandyard.cli.up.supervisor import supervise
from sandyard.kit.errors import SandyardError
from tests.harness.processes import ROOT

LOADED = Path(os.environ.get("SANDYARD_TEST_MARK", ".")) / "loaded"


def say(line: str) -> None:
    print(line, flush=True)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(name: str, port: int, behaviour: str) -> None:
    lifeline.watch_supervisor()
    if behaviour == "broken":
        say("I cannot")
        sys.exit(7)
    if behaviour == "patient":
        LOADED.touch()
        lifeline.wait_for_turn()
    while behaviour == "waits" and not LOADED.exists():  # until the other server has loaded its code
        time.sleep(0.01)
    server = HTTPServer(("127.0.0.1", port), Handler)
    server.timeout = 0.05
    stop_requests = []
    signal.signal(signal.SIGTERM, lambda *_: stop_requests.append(1))
    say(f"{name} is {os.getpid()}")
    while not stop_requests or behaviour == "stubborn":
        server.handle_request()
    say(f"{name} says goodbye")


def run_supervisor(data: Path, behaviour: str) -> None:
    state = DataDirectory(data)
    state.acquire_lock()
    children = []
    for name in ("first", "second"):
        port = choose_port("127.0.0.1", 0, "--port")
        command = [sys.executable, "-m", "tests.integration.cli.up.keeper", "serve", name, str(port)]
        command.append(behaviour if name == "second" else "waits" if behaviour == "patient" else "")
        url = f"http://127.0.0.1:{port}/"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        children.append(
            Child(name, command, environment, url, 204, state.lock_fd, say, say, starts_early=behaviour == "patient")
        )
    asyncio.run(supervise(children, lambda: say("all ready")))
    say("stopped")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        lifeline.STOP_SECONDS = 1.0 if "stubborn" in sys.argv else lifeline.STOP_SECONDS
        child.FIRST_PAUSE_SECONDS = 0.1
        try:
            run_supervisor(Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
        except SandyardError as error:
            say(f"error: {error.message}")
            sys.exit(1)
