"""The nodes of a Ray cluster as machines for hosts, through a sidecar process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.machine.net import ranges
from sandyard.engine.drivers.machine.net.policy import NEVER, PRIVATE
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.hosts.machines import EFFECT_OF_AWAY_CLUSTER, ListedSource, Machine, NotJoinedError
from sandyard.engine.hosts.ray_cluster.credentials import make_environment
from sandyard.engine.hosts.ray_cluster.messages import (
    MAX_LINE,
    NOT_JOINED,
    ConnectRequest,
    StartRequest,
    encode,
    parse,
    parse_machines,
)
from sandyard.kit import processes
from sandyard.kit.errors import InvalidInputError, SandyardError, UnreachableError, UnsupportedError
from sandyard.kit.logging import get_logger
from sandyard.kit.processes import PipeReader
from sandyard.kit.python import SAFE_FOLDER, make_python_command, make_python_environment
from sandyard.kit.tasks import TaskSet, end_tasks

log = get_logger(__name__)

NAME = "ray"
MODULE = "sandyard.engine.hosts.ray_cluster.sidecar"
CONNECT_S = 60.0
"""How long the sidecar may take to connect to Ray."""
SILENCE_S = 15.0
"""The sidecar sends the list of machines every second. If it is silent for longer, Ray does not answer."""
START_S = 180.0
"""How long starting a host service may take, including its keeper."""
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 15.0
_OUTPUT_LINES = 5


@dataclass(frozen=True, slots=True)
class RayOptions:
    """`address` is that of the head, ADDRESS:PORT. `port` is the one on which host services listen on nodes. `fingerprint` is that of the
    engine's authority for hosts."""

    address: str
    credentials: Path
    port: int
    fingerprint: str


def require_ray() -> None:
    """Raise UnsupportedError if Ray is not installed. It is only looked up: only the sidecar imports it."""
    if importlib.util.find_spec("ray") is None:
        raise UnsupportedError(
            "Hosts on the nodes of a Ray cluster need the package ray, which is not installed. Run `pip install 'sandyard[ray]'` "
            "in the environment of Sandyard (hashes are in requirements/ray.txt)."
        )


class RayMachines(ListedSource):
    """Implements `MachineSource`. Call `open` first, and `close` at the end."""

    name = NAME

    def __init__(self, options: RayOptions) -> None:
        super().__init__("Ray has not answered yet.")
        self._options = options
        self._environment = make_environment(options.credentials)
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._output: deque[str] = deque(maxlen=_OUTPUT_LINES)
        self._tasks = TaskSet("ray")

    def open(self) -> None:
        """Start the sidecar, and start it again whenever it ends."""
        self._tasks.spawn(self._stay_connected())

    async def close(self) -> None:
        """End the sidecar. Host services keep running."""
        await self._tasks.cancel()

    async def start(self, machine: Machine, token: JoinToken | None) -> None:
        check_address(machine.address)
        request = StartRequest(
            self._options.fingerprint,
            machine.name,
            machine.address,
            self._options.port,
            token.encode().reveal() if token is not None else None,
        )
        answer = await self._call({"machine": machine.id, "order": request.encode()})
        if NOT_JOINED in answer:
            raise NotJoinedError

    async def _call(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call the sidecar and return the result. Raises UnreachableError and SandyardError."""
        if self._writer is None:
            raise UnreachableError(self._problem or "Ray cannot be reached.")
        number = next(self._numbers)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            self._writer.write(encode({"id": number, **message}))
            async with asyncio.timeout(START_S):
                answer = await future
        except TimeoutError:
            raise UnreachableError(f"Ray has not started the host service within {START_S:.0f} s.") from None
        finally:
            del self._calls[number]
        if "error" in answer:
            raise SandyardError(str(answer["error"])[:2000])
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    async def _stay_connected(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            began = time.monotonic()
            try:
                await self._run_sidecar()
            except (SandyardError, OSError) as error:
                reason = error.message if isinstance(error, SandyardError) else str(error)
                problem = f"Ray at {self._options.address} cannot be reached: {reason} {EFFECT_OF_AWAY_CLUSTER}"
                if self._set_problem(problem):
                    log.warning("ray_unreachable", address=self._options.address, reason=problem)
            if time.monotonic() - began > MAX_RETRY_S + SILENCE_S:
                retry_s = FIRST_RETRY_S
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S)

    async def _run_sidecar(self) -> None:
        """Run a sidecar until it fails. Raises UnreachableError and OSError."""
        ours, theirs = socket.socketpair()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            process = processes.start(
                make_python_command(MODULE, str(theirs.fileno())),
                cwd=Path(SAFE_FOLDER),
                env=make_python_environment(inherited | self._environment),
                pass_fds=(theirs.fileno(),),
            )
            undo.pop_all()
        self._output.clear()
        readers = [asyncio.create_task(self._keep_output(pipe)) for pipe in (process.stdout, process.stderr)]
        writer = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE)
            namespace = f"{NAME}-sandyard-{self._options.fingerprint[:16]}"
            writer.write(encode({"connect": asdict(ConnectRequest(self._options.address, namespace))}))
            self._writer = writer
            await self._read_messages(reader)
        finally:
            self._writer = None
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(UnreachableError("The connection to Ray was lost."))
            process.signal_all(signal.SIGKILL)
            await process.wait()
            await end_tasks(*readers)
            process.close()
            if writer is not None:
                writer.close()
            else:
                ours.close()

    async def _read_messages(self, reader: asyncio.StreamReader) -> None:
        """Handle messages of the sidecar. Raises UnreachableError when it fails."""
        timeout_s = CONNECT_S
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    line = await reader.readline()
            except TimeoutError:
                raise UnreachableError(f"it has not answered for {timeout_s:.0f} s.") from None
            except ValueError:
                raise UnreachableError(f"the sidecar has sent a message of more than {MAX_LINE} bytes.") from None
            if not line:
                raise UnreachableError(f"the sidecar has ended. {' / '.join(self._output)}".strip())
            message = parse(line)
            if "failed" in message:
                raise UnreachableError(f"{str(message['failed']).rstrip('.')[:1000]}.")
            if "machines" in message:
                timeout_s = SILENCE_S
                self._machines.replace(parse_machines(message["machines"]))
                if self._set_problem(None):
                    log.info("ray_connected", address=self._options.address)
            elif (future := self._calls.get(message.get("id", 0))) is not None and not future.done():
                future.set_result(message)

    async def _keep_output(self, pipe: PipeReader) -> None:
        """Keep the last lines that the sidecar prints, to explain its end."""
        while data := await pipe.read(1 << 16):
            self._output.extend(
                line.strip()[:300] for line in data.decode(errors="replace").splitlines() if line.strip()
            )


def check_address(address: str) -> None:
    """Raise InvalidInputError if sandboxes on other hosts could connect to this address: then they could reach Ray's ports."""
    try:
        parsed = ip_address(address)
    except ValueError:
        raise InvalidInputError(
            f"Ray reports {address[:70]!r} as the address of a node, which is not an IP address. Start Ray with --node-ip-address."
        ) from None
    blocked = ranges.merge((*PRIVATE, *NEVER))
    if not (parsed.is_private if parsed.version == 6 else ranges.contains(blocked, int(parsed))):
        raise InvalidInputError(
            f"The node has the public address {address}, so sandboxes on other hosts could connect to Ray's ports. Start Ray with "
            "--node-ip-address and an address in a private network."
        )
