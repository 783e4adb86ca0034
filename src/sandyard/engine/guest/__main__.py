"""Run a single agent, for the fake driver and for tests: `python -m sandyard.engine.guest --socket PATH [--root DIR]`."""

from __future__ import annotations

import argparse
import json
import socket
from pathlib import Path
from typing import NoReturn

from sandyard.engine.guest.agent import prepare, serve
from sandyard.engine.guest.config import GuestConfig


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m sandyard.engine.guest", description=__doc__)
    parser.add_argument("--socket", required=True, help="path of the unix socket to listen on, or 127.0.0.1:PORT")
    parser.add_argument("--root", default="/", help="directory to use as / (default: /)")
    parser.add_argument("--user", default="user", help="default user")
    parser.add_argument("--config", type=json.loads, default={}, help="more settings, as JSON (see GuestConfig)")
    options = parser.parse_args()
    prepare()
    config = GuestConfig(root=options.root, default_user=options.user, **options.config)
    if config.rooted is False:
        for folder in ("home/user", "root", "tmp"):
            (Path(options.root) / folder).mkdir(parents=True, exist_ok=True)
    serve(_listen(options.socket), config)


def _listen(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in address:
        return socket.create_server((host or "127.0.0.1", int(port)))
    Path(address).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    return listener


if __name__ == "__main__":
    main()
