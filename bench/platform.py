"""The platform measured through its API, by clients in this process: reads at a steady rate, commands, events to many."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from e2b import AsyncSandbox

from bench import events
from bench.processes import Endpoint, engine, floor
from bench.report import Row, median, percentile
from bench.wire import Wire
from sandyard.kit.listen import free_port

READ_RATE = 200
READ_SECONDS = 10
EXECUTES = 60
AT_ONCE = 10
CONNECTIONS = 32


@dataclass(frozen=True)
class Platform:
    url: str
    token: str


@contextlib.contextmanager
def platform(endpoint: Endpoint) -> Iterator[Platform]:
    """Start a platform on a new data directory and delete everything afterwards."""
    data = Path(tempfile.mkdtemp(prefix="sandyard-bench-", dir=os.environ.get("SANDYARD_BENCH_DIR", "/var/tmp")))
    port = free_port()
    variables = {
        **os.environ,
        "E2B_API_URL": endpoint.url,
        "E2B_SANDBOX_URL": endpoint.url,
        "E2B_API_KEY": endpoint.key,
    }
    variables |= {"SANDYARD_PORT": str(port), "SANDYARD_DATA_DIR": str(data / "data"), "SANDYARD_LOG_LEVEL": "warning"}
    variables |= {"SANDYARD_CREATES_PER_MINUTE": "100000", "SANDYARD_EXECUTES_PER_MINUTE": "100000"}
    variables |= {"SANDYARD_PARALLEL_ATTEMPTS": "8", "SANDYARD_PARALLEL_ATTEMPTS_PER_USER": "8"}
    child = subprocess.Popen(
        [sys.executable, "-m", "sandyard", "platform"], stdout=subprocess.PIPE, text=True, env=variables
    )
    try:
        assert child.stdout
        token = next((line.split()[-1] for line in child.stdout if line.startswith("admin token:")), None)
        if token is None:
            raise SystemExit("the platform ended at once")
        yield Platform(f"http://127.0.0.1:{port}", token)
    finally:
        child.terminate()
        child.wait(60)
        shutil.rmtree(data, ignore_errors=True)


def measure(rounds: int) -> list[Row]:
    return asyncio.run(_measure(rounds))


async def _measure(rounds: int) -> list[Row]:
    rows: list[Row] = []
    with floor() as nothing:
        low_reads = await reads(nothing.url, "floor", "/sandboxes", READ_RATE, READ_SECONDS / 2)
    with engine("--pool-size", "8") as endpoint, platform(endpoint) as served:
        endpoint.use()
        async with client_of(f"{served.url}/api/v1", served.token) as client:
            session = (await client.post("/sessions", json={"title": "bench"})).raise_for_status().json()
            sandbox = session["sandboxId"]
            await executes(client, sandbox, 5)
            bare = await AsyncSandbox.create(timeout=600)
            low_execs = [await _timed(bare.commands.run("true")) for _ in range(rounds)]
            await bare.kill()
            path = f"/api/v1/sessions/{session['id']}"
            found = await reads(served.url, served.token, path, READ_RATE, READ_SECONDS)
            rows.append(Row("API read at 200/s, p50", median(found), "ms", median(low_reads), None))
            rows.append(Row("API read at 200/s, p99", percentile(found, 0.99), "ms", percentile(low_reads, 0.99), 50))
            alone = await executes(client, sandbox, rounds)
            rows.append(Row("API execute of true, p50", median(alone), "ms", median(low_execs), None))
            loaded = await executes_at_once(client, sandbox, rounds)
            rows.append(Row(f"API execute, {AT_ONCE} at once, p50", median(loaded), "ms", median(low_execs), None))
            rows.append(Row(f"API execute, {AT_ONCE} at once, p99", percentile(loaded, 0.99), "ms", None, None))

            async def rename(mark: str) -> None:
                (await client.patch(f"/sessions/{session['id']}", json={"title": mark})).raise_for_status()

            seen = await events.delivery(served.url, served.token, rename)
            missed = f"{seen.missed} of {seen.expected} missed"
            rows.append(Row("event → 200 SSE clients, p50", seen.p50, "ms", None, None))
            rows.append(Row("event → 200 SSE clients, p99", seen.p99, "ms", None, 100, note=missed))
            await client.delete(f"/sessions/{session['id']}")
    return rows


@contextlib.asynccontextmanager
async def client_of(url: str, token: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=50, max_keepalive_connections=50)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=60) as client:
        yield client


async def reads(url: str, token: str, path: str, rate: int, seconds: float) -> list[float]:
    """Return the milliseconds of each request, sent at a constant rate whether or not earlier ones were answered."""
    address = urlsplit(url)
    request = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    idle: asyncio.Queue[Wire] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        idle.put_nowait((await loop.create_connection(Wire, address.hostname, address.port))[1])
    samples: list[float] = []

    async def send_request(due: float) -> None:
        wire = await idle.get()
        status = await wire.ask(request)
        assert status < 300, status
        samples.append((time.perf_counter() - due) * 1000)
        idle.put_nowait(wire)

    begin = time.perf_counter()
    tasks = []
    for number in range(round(rate * seconds)):
        due = begin + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(send_request(due)))
    await asyncio.gather(*tasks)
    return samples[rate // 2 :]  # the first half second warms up


async def executes(client: httpx.AsyncClient, sandbox: str, count: int) -> list[float]:
    return [await _timed(_execute(client, sandbox)) for _ in range(count)]


async def executes_at_once(client: httpx.AsyncClient, sandbox: str, count: int) -> list[float]:
    async def some() -> list[float]:
        return await executes(client, sandbox, max(3, count // AT_ONCE))

    return [sample for batch in await asyncio.gather(*(some() for _ in range(AT_ONCE))) for sample in batch]


async def _execute(client: httpx.AsyncClient, sandbox: str) -> None:
    answer = await client.post(f"/sandboxes/{sandbox}/execute", json={"command": "true"})
    assert answer.json()["exitCode"] == 0, answer.text


async def _timed(work: object) -> float:
    start = time.perf_counter()
    await work  # type: ignore[misc]
    return (time.perf_counter() - start) * 1000
