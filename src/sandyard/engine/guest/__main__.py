"""Run a single agent, for the fake driver and for tests: `python -m sandyard.engine.guest --socket PATH [--root DIR]`."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from sandyard.engine.guest.agent import prepare, serve
from sandyard.engine.guest.config import GuestConfig


def main() -> NoReturn:
    """Parse the command line and serve; never returns."""
    parser = argparse.ArgumentParser(prog="python -m sandyard.engine.guest", description=__doc__)
    parser.add_argument("--socket", required=True, help="path of the unix socket to listen on, or 127.0.0.1:PORT")
    parser.add_argument("--root", default="/", help="directory to use as / (default: /)")
    parser.add_argument("--user", default="user", help="default user")
    parser.add_argument("--config", type=json.loads, default={}, help="more settings, as JSON (see GuestConfig)")
    parser.add_argument(
        "--secret", action="store_true", help="read the bytes of GuestConfig.engine_secret from standard input"
    )
    options = parser.parse_args()
    if options.secret:
        options.config["engine_secret"] = _read_secret()
    prepare()
    options.config["container_service"] = tuple(options.config.get("container_service", ()))
    config = GuestConfig(root=options.root, default_user=options.user, **options.config)
    if not config.has_default_root:
        for folder in ("home/user", "root", "tmp"):
            (Path(options.root) / folder).mkdir(parents=True, exist_ok=True)
    serve(_listen(options.socket), config)


def _read_secret() -> bytes:
    """Read standard input, and close it, because other programs could read it again."""
    secret = sys.stdin.buffer.read()
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return secret


def _listen(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in address:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Without SO_REUSEADDR, because gVisor would let other programs listen on more specific addresses of this port.
        listener.bind((host or "127.0.0.1", int(port)))
        listener.listen()
        return listener
    Path(address).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    return listener


if __name__ == "__main__":
    main()
