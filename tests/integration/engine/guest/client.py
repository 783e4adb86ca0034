"""A plain client of the guest agent's socket, which can also send malformed data, and guest agent processes to use it with."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[4] / "src"
TIMEOUT_S = 60.0


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool], message: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.01)


class GuestAgent:
    """A guest agent in a process of its own."""

    def __init__(self, address: str, command: list[str]) -> None:
        self.address = address
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "AGENT_SECRET": "do not leak"},
            start_new_session=True,
        )
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):
                self.connect().close()
                return
            assert self.process.poll() is None, "the agent exited at once"
            assert time.monotonic() < deadline, "the agent must listen in time"
            time.sleep(0.01)

    @classmethod
    def on_host(cls, socket_path: Path, root: Path) -> GuestAgent:
        command = [sys.executable, "-m", "sandyard.engine.guest", "--socket", str(socket_path), "--root", str(root)]
        return cls(str(socket_path), command)

    def connect(self) -> socket.socket:
        host, colon, port = self.address.rpartition(":")
        if colon:
            return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT_S)
        sock.connect(self.address)
        return sock

    def stop(self) -> None:
        """Stop the agent and everything it started."""
        self.process.terminate()
        assert self.process.wait(TIMEOUT_S) == 0, "the agent did not exit cleanly"

    def client(self, user: str | None = None) -> Client:
        return Client(self.connect(), user)


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RpcFailureError(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.code = error["code"]
        self.message = error["message"]


class Client:
    """One connection that sends one request after the other."""

    def __init__(self, sock: socket.socket, user: str | None = None) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")
        self.basic = {"Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()} if user else {}

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def send(self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        all_headers = {"Host": "x", **self.basic, **(headers or {})}
        if not any(name.lower() == "transfer-encoding" for name in all_headers):
            all_headers.setdefault("Content-Length", str(len(body)))
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in all_headers.items()
        )
        self.sock.sendall(head.encode() + b"\r\n" + body)

    def read_head(self) -> Response:
        line = self.file.readline()
        assert line, "the connection closed without a response"
        headers: dict[str, str] = {}
        while (header := self.file.readline().decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        return Response(int(line.split()[1]), headers, b"")

    def read_response(self, *, bodyless: bool = False) -> Response:
        response = self.read_head()
        if response.headers.get("transfer-encoding") == "chunked":
            response.body = b"".join(self.read_chunks())
        elif not bodyless:
            size = int(response.headers.get("content-length", 0))
            response.body = self.file.read(size)
            assert len(response.body) == size, "the body ended early"
        return response

    def read_chunks(self) -> Iterator[bytes]:
        while True:
            line = self.file.readline()
            if not line:
                raise EOFError("the stream ended without its last chunk")
            size = int(line, 16)
            data = self.file.read(size + 2)[:-2]
            if not size:
                return
            yield data

    def request(self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Response:
        self.send(method, target, body, headers)
        return self.read_response(bodyless=method == "HEAD")

    # Connect ---------------------------------------------------------------------------------------------------------

    def call(self, method: str, message: Any = None, headers: dict[str, str] | None = None) -> Any:
        body = json.dumps({} if message is None else message).encode()
        response = self.request("POST", f"/{method}", body, {"Content-Type": "application/json", **(headers or {})})
        if response.status != 200:
            raise RpcFailureError(response.json)
        return response.json

    def open_stream(self, method: str, message: Any, headers: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Return the messages as they arrive. Raises RpcFailureError when the stream ends with an error."""
        body = envelope(message)
        self.send("POST", f"/{method}", body, {"Content-Type": "application/connect+json", **(headers or {})})
        head = self.read_head()
        assert head.status == 200, head
        assert head.headers["content-type"] == "application/connect+json"
        return self.read_messages()

    def read_messages(self) -> Iterator[dict[str, Any]]:
        buffer = b""
        error: dict[str, Any] | None = None
        for chunk in self.read_chunks():
            buffer += chunk
            while len(buffer) >= 5:
                flags, size = struct.unpack_from(">BI", buffer)
                if len(buffer) < 5 + size:
                    break
                message = json.loads(buffer[5 : 5 + size])
                buffer = buffer[5 + size :]
                if flags & 2:
                    error = message.get("error")
                    continue
                yield message
        assert not buffer
        if error is not None:
            raise RpcFailureError(error)

    def start(self, *argv: str, headers: dict[str, str] | None = None, **fields: Any) -> Run:
        process = {"cmd": argv[0], "args": list(argv[1:]), **fields.pop("process", {})}
        message = {"process": process, "stdin": False, **fields}
        return Run(self.open_stream("process.Process/Start", message, headers))

    def attach(self, headers: dict[str, str] | None = None, **selector: Any) -> Run:
        return Run(self.open_stream("process.Process/Connect", {"process": selector}, headers))

    def shell(self, script: str, **fields: Any) -> Run:
        return self.start("/bin/sh", "-c", script, **fields).finish()


def envelope(message: Any, flags: int = 0) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body)) + body


class Run:
    """A process, as its stream of events reports it."""

    def __init__(self, events: Iterator[dict[str, Any]]) -> None:
        self._events = events
        self.pid: int = next(events)["event"]["start"]["pid"]
        self.output = {"stdout": b"", "stderr": b"", "pty": b""}
        self.end: dict[str, Any] | None = None
        self.keepalives = 0

    def step(self) -> bool:
        """Read one more event. Return False at the end of the stream."""
        for message in self._events:
            event = message["event"]
            for kind, data in event.get("data", {}).items():
                self.output[kind] += base64.b64decode(data)
            self.keepalives += "keepalive" in event
            self.end = event.get("end", self.end)
            return True
        return False

    def until(self, kind: str, text: bytes) -> Run:
        while text not in self.output[kind]:
            assert self.step(), f"ended with {self.output} before {text!r}"
        return self

    def finish(self) -> Run:
        while self.step():
            pass
        return self

    @property
    def stdout(self) -> str:
        return self.output["stdout"].decode()
