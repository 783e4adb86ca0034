"""Much output of one command: to a client that only reads the wire, to the Python SDK, and through the platform's API; beside a pipe on the
host, and an HTTP stream of a server that does nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from urllib.parse import urlsplit

from e2b import Sandbox

from bench.platform import client_of, platform
from bench.processes import Endpoint, engine, floor
from bench.report import Row, median

MEGABYTES = 500
TARGET = 100
LINE = "0123456789" * 8
AGENT_PORT = 49983
_PIECE = 1 << 20


def command(megabytes: int) -> str:
    return f"yes {LINE} | head -c {megabytes * 1_000_000}"


def measure(rounds: int) -> list[Row]:
    times = 3 if rounds >= 100 else 2
    pipe = median([through_pipe(MEGABYTES) for _ in range(times)])
    with floor() as nothing:
        stream = median([_read(nothing, _request("GET", "/files?big", {}), 100) for _ in range(times)])
    with engine("--pool-size", "2") as endpoint, platform(endpoint) as served:
        endpoint.use()
        sandbox = Sandbox.create(timeout=600)
        wire = median([over_wire(endpoint, sandbox, MEGABYTES) for _ in range(times)])
        sdk = median([through_sdk(sandbox, MEGABYTES // 5) for _ in range(times)])
        sandbox.kill()
        api = asyncio.run(through_platform(served.url, served.token, times))
    what = f"{MEGABYTES} MB of output"
    return [
        Row("a pipe on the host", pipe, "MB/s", None, None, more_is_better=True),
        Row(f"{what} → a raw client", wire, "MB/s", stream, TARGET, more_is_better=True, note="floor: an HTTP stream"),
        Row(f"{MEGABYTES // 5} MB → the Python SDK", sdk, "MB/s", stream, None, more_is_better=True),
        Row(f"{what} → execute of the platform's API", api, "MB/s", wire, TARGET, more_is_better=True),
    ]


def through_pipe(megabytes: int) -> float:
    begun = time.perf_counter()
    child = subprocess.Popen(["/bin/bash", "-c", command(megabytes)], stdout=subprocess.PIPE, bufsize=0)
    assert child.stdout
    count = 0
    while piece := child.stdout.read(_PIECE):
        count += len(piece)
    child.wait()
    assert count == megabytes * 1_000_000
    return megabytes / (time.perf_counter() - begun)


def over_wire(endpoint: Endpoint, sandbox: Sandbox, megabytes: int) -> float:
    """Return the MB/s of output for a client that reads the stream of `process.Process/Start` without parsing it."""
    start = {"process": {"cmd": "/bin/bash", "args": ["-c", command(megabytes)]}}
    message = json.dumps(start).encode()
    headers = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2b-Sandbox-Port": str(AGENT_PORT),
        "X-Access-Token": str(sandbox._envd_access_token or ""),
        "Content-Type": "application/connect+json",
        "Connect-Protocol-Version": "1",
    }
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return _read(endpoint, _request("POST", "/process.Process/Start", headers, body), megabytes)


def _request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    every = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in every.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def _read(endpoint: Endpoint, request: bytes, megabytes: int) -> float:
    """Read until the reply ends, or until the wanted size has arrived if the server does not announce it."""
    address = urlsplit(endpoint.url)
    begun = time.perf_counter()
    with socket.create_connection((address.hostname, address.port), timeout=120) as sock:
        sock.sendall(request)
        buffer, count, end = bytearray(_PIECE), 0, b""
        while size := sock.recv_into(buffer):
            count += size
            end = (end + bytes(buffer[max(0, size - 7) : size]))[-7:]
            if end == b"\r\n0\r\n\r\n" or (endpoint.key == "floor" and count >= megabytes << 20):
                break
    assert count >= megabytes * 1_000_000, count
    return megabytes / (time.perf_counter() - begun)


def through_sdk(sandbox: Sandbox, megabytes: int) -> float:
    begun = time.perf_counter()
    done = sandbox.commands.run(command(megabytes), timeout=0)
    assert len(done.stdout) == megabytes * 1_000_000
    return megabytes / (time.perf_counter() - begun)


async def through_platform(url: str, token: str, times: int) -> float:
    samples = []
    async with client_of(f"{url}/api/v1", token) as client:
        sandbox = (await client.post("/sandboxes", json={})).raise_for_status().json()["id"]
        for _ in range(times):
            begun = time.perf_counter()
            body = {"command": command(MEGABYTES), "timeout": 600}
            answer = await client.post(f"/sandboxes/{sandbox}/execute", json=body, timeout=600)
            assert answer.json()["exitCode"] == 0, answer.text[:1000]
            samples.append(MEGABYTES / (time.perf_counter() - begun))
        (await client.delete(f"/sandboxes/{sandbox}")).raise_for_status()
    return median(samples)
