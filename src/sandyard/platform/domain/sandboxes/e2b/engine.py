"""The engine as the platform sees it: all operations, through the official SDK only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from e2b import (
    ALL_TRAFFIC,
    AsyncSandbox,
    ConnectionConfig,
    SandboxInfo,
    SandboxNetworkOpts,
    SandboxNetworkUpdate,
    SandboxQuery,
    SandboxState,
)
from e2b.api import client_async, handle_api_exception
from e2b.api.client.api.sandboxes import get_v_2_sandboxes_sandbox_id_logs
from e2b.api.client.api.templates import get_templates_template_id
from e2b.api.client.models import (
    SandboxDetail,
    SandboxLogEntry,
    SandboxLogsV2Response,
    TemplateBuildStatus,
    TemplateWithBuilds,
)
from tenacity.wait import wait_base

from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.sandboxes.e2b.breaker import Breaker
from sandyard.platform.domain.sandboxes.e2b.commands import Commands
from sandyard.platform.domain.sandboxes.e2b.config import Denied, EngineConfig, EngineSandbox, EngineState, Usage
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineError,
    EngineTimeoutError,
    SandboxNotFoundError,
    translate,
)
from sandyard.platform.domain.sandboxes.e2b.files import Files
from sandyard.platform.domain.sandboxes.e2b.gate import Gate, require_id
from sandyard.platform.domain.sandboxes.e2b.listing import FileEntry, FilePage
from sandyard.platform.domain.sandboxes.e2b.ports import Ports
from sandyard.platform.domain.sandboxes.e2b.programs import LIMIT, NO_ENVS, TIMEOUT_S, Programs, Ran
from sandyard.platform.domain.sandboxes.e2b.retry import BACKOFF
from sandyard.platform.domain.sandboxes.e2b.streams import Streams
from sandyard.platform.domain.sandboxes.e2b.terminal import Terminals

PAGE = 100
DENIED, DENIED_SHOWN, DENIED_HEADER = "Blocked by the network policy:", 300, "x-sandyard-egress-denied"
"""Prefix of log entries about denied connections, and the header with which an endpoint announces that it has such
entries."""
SAMPLES_S = 120
"""How far back to ask for usage samples. The newest one counts."""


class SandboxEngine:
    """One engine endpoint. Methods take the engine's id of a sandbox.

    Only `wake` resumes a sandbox. Every method that works inside a sandbox raises SandboxNotRunningError if it is
    paused and SandboxNotFoundError if it is gone.
    """

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock | None = None,
        *,
        backoff: wait_base = BACKOFF,
        breaker: Breaker | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.config = config
        self.breaker = breaker or Breaker(clock)
        self._gate = Gate(config, self.breaker, clock, backoff)
        self._files = Files(self._gate)
        self._programs = Programs(self._gate)
        self.commands = Commands(self._gate)
        self.terminals = Terminals(self._gate)
        self.streams = Streams(self._gate)
        self.ports = Ports(self._gate, self._programs)

    @property
    def configured(self) -> bool:
        """Whether an API key is configured."""
        return bool(self.config.api_key)

    # life cycle of a sandbox ------------------------------------------------------------------------------------------

    async def create(
        self,
        *,
        template: str,
        timeout_s: float,
        metadata: Mapping[str, str],
        envs: Mapping[str, str],
        idempotency_key: str,
        allowed: Sequence[str] | None = None,
    ) -> EngineSandbox:
        """Create a sandbox and return it when it is running, within `create_timeout_s` including retries.

        The same key returns the same sandbox. When its time is over it is paused with its memory, and only `wake`
        resumes it. If the endpoint supports it, its ports require the traffic token, because the platform decides who
        has access. `allowed` lists the only names and addresses it may connect to. None: all.
        """
        key = _normalize_key(idempotency_key)
        network: SandboxNetworkOpts = {"allow_public_traffic": False}
        if allowed:
            network |= {"allow_out": list(allowed), "deny_out": [ALL_TRAFFIC]}
        last: list[EngineError] = []

        async def create() -> EngineSandbox:
            try:
                sandbox = await AsyncSandbox.create(
                    template=template,
                    timeout=max(1, round(timeout_s)),
                    metadata=dict(metadata),
                    envs=dict(envs),
                    allow_internet_access=allowed is None or len(allowed) > 0,
                    network=network,
                    lifecycle={"on_timeout": {"action": "pause", "mode": "full"}, "auto_resume": False},
                    idempotency_key=key,
                    **self.config.options,
                )
                self._gate.remember(sandbox)
                return _from_info(await AsyncSandbox.get_info(sandbox.sandbox_id, **self.config.options))
            except Exception as error:
                ours = translate(error, self.config.api_key)
                if isinstance(ours, EngineError):
                    last[:] = [ours]
                raise

        try:
            async with asyncio.timeout(self.config.create_timeout_s):
                return await self._gate.control("create", create)
        except TimeoutError:
            if last:
                raise last[0] from None
            raise EngineTimeoutError(
                f"The sandbox was not created within {self.config.create_timeout_s:g} s. Try again; if it keeps failing, check "
                "whether the engine is overloaded."
            ) from None

    async def info(self, engine_id: str) -> EngineSandbox:
        """Return the sandbox's state without resuming it. Raises SandboxNotFoundError."""
        return _from_detail(await self._gate.detail(engine_id))

    async def list(self, metadata: Mapping[str, str] | None = None) -> list[EngineSandbox]:
        """List the running and paused sandboxes of this key that have at least this metadata."""

        async def collect() -> list[EngineSandbox]:
            query = SandboxQuery(
                metadata=dict(metadata) if metadata else None, state=[SandboxState.RUNNING, SandboxState.PAUSED]
            )
            pages = AsyncSandbox.list(query=query, limit=PAGE, **self.config.options)
            found: dict[str, EngineSandbox] = {}
            while pages.has_next:
                found |= {item.sandbox_id: _from_info(item) for item in await pages.next_items()}
            return [*found.values()]

        return await self._gate.control("list", collect)

    async def pause(self, engine_id: str) -> None:
        """Pause the sandbox with its memory. Idempotent."""
        require_id(engine_id)
        self._gate.drop(engine_id)
        await self._gate.control("pause", lambda: AsyncSandbox.pause(engine_id, mode="full", **self.config.options))
        self._gate.drop(engine_id)

    async def wake(self, engine_id: str, timeout_s: float) -> None:
        """Resume the sandbox for at least that long. Idempotent."""
        require_id(engine_id)
        timeout = max(1, round(timeout_s))
        sandbox = await self._gate.control(
            "wake", lambda: AsyncSandbox.connect(engine_id, timeout=timeout, **self.config.options)
        )
        self._gate.remember(sandbox)

    async def extend(self, engine_id: str, timeout_s: float) -> None:
        """Let the sandbox run for that long from now. Idempotent; never resumes it."""
        require_id(engine_id)
        timeout = max(1, round(timeout_s))
        await self._gate.control(
            "extend", lambda: AsyncSandbox.set_timeout(engine_id, timeout=timeout, **self.config.options)
        )

    async def set_network(self, engine_id: str, allowed: Sequence[str] | None) -> None:
        """Set what a running sandbox may connect to from now on, including existing connections. Idempotent."""
        require_id(engine_id)
        update: SandboxNetworkUpdate = {"allow_internet_access": allowed is None or len(allowed) > 0}
        if allowed:
            update |= {"allow_out": list(allowed), "deny_out": [ALL_TRAFFIC]}
        await self._gate.control(
            "set_network", lambda: AsyncSandbox.update_network(engine_id, network=update, **self.config.options)
        )

    async def denied(self, engine_id: str) -> Sequence[Denied] | None:
        """Return the connections that the sandbox's network settings have denied, oldest first.

        None if the endpoint does not report them, as E2B Cloud. Never resumes the sandbox.
        """
        require_id(engine_id)

        async def read() -> Sequence[Denied] | None:
            client = client_async.get_api_client(ConnectionConfig(**self.config.options))
            answer = await get_v_2_sandboxes_sandbox_id_logs.asyncio_detailed(
                engine_id, client=client, search=DENIED, limit=DENIED_SHOWN
            )
            if answer.status_code == 404:
                raise SandboxNotFoundError
            if not isinstance(answer.parsed, SandboxLogsV2Response):
                raise handle_api_exception(answer)
            if answer.headers.get(DENIED_HEADER) is None:
                return None
            return [_to_denied(entry) for entry in answer.parsed.logs if entry.fields.to_dict().get("host")]

        return await self._gate.control("denied", read)

    async def kill(self, engine_id: str) -> bool:
        """Delete the sandbox, paused or not. Returns False if it was gone already. Idempotent."""
        self._gate.drop(engine_id)
        try:
            require_id(engine_id)
            return await self._gate.control("kill", lambda: AsyncSandbox.kill(engine_id, **self.config.options))
        except SandboxNotFoundError:
            return False
        finally:
            self._gate.drop(engine_id)

    async def usage(self, engine_id: str) -> Usage | None:
        """Return the usage. None if there is no sample of the last two minutes, as for a paused sandbox. Never resumes
        it."""
        require_id(engine_id)
        since = datetime.fromtimestamp(self._gate.clock.now(), UTC) - timedelta(seconds=SAMPLES_S)
        samples = await self._gate.control(
            "usage", lambda: AsyncSandbox.get_metrics(engine_id, start=since, **self.config.options)
        )
        if not samples:
            return None
        newest = max(samples, key=lambda sample: sample.timestamp)
        return Usage(
            cpu_percent=newest.cpu_used_pct,
            cpu_count=newest.cpu_count,
            memory_bytes=newest.mem_used,
            memory_total_bytes=newest.mem_total,
            disk_bytes=newest.disk_used,
            disk_total_bytes=newest.disk_total,
            at=newest.timestamp,
        )

    # snapshots and copies ---------------------------------------------------------------------------------------------

    async def snapshot(self, engine_id: str, name: str | None = None) -> str:
        """Take a snapshot and return its id, which can be used as a template. Not idempotent: each call creates one."""
        require_id(engine_id)
        made = await self._gate.control(
            "snapshot",
            lambda: AsyncSandbox.create_snapshot(engine_id, name=name, **self.config.options),
            idempotent=False,
        )
        return made.snapshot_id

    async def snapshots(self, engine_id: str) -> Sequence[str]:
        """Return the ids of this sandbox's snapshots, also if the sandbox is gone."""
        require_id(engine_id)

        async def collect() -> Sequence[str]:
            pages = AsyncSandbox.list_snapshots(sandbox_id=engine_id, limit=PAGE, **self.config.options)
            found: dict[str, None] = {}
            while pages.has_next:
                found |= {item.snapshot_id: None for item in await pages.next_items()}
            return tuple(found)

        return await self._gate.control("snapshots", collect)

    async def template_build(self, template: str) -> str | None:
        """Return the id of the build that new sandboxes of this template use.

        None if the endpoint does not say, as E2B Cloud for templates of others.
        """

        async def read() -> str | None:
            client = client_async.get_api_client(ConnectionConfig(**self.config.options))
            answer = await get_templates_template_id.asyncio_detailed(template, client=client)
            if answer.status_code in (403, 404):
                return None
            if not isinstance(answer.parsed, TemplateWithBuilds):
                raise handle_api_exception(answer)
            ready = (build for build in answer.parsed.builds if build.status == TemplateBuildStatus.READY)
            return next((str(build.build_id) for build in ready), None)

        return await self._gate.control("template_build", read)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot. Idempotent."""
        await self._gate.control(
            "delete_snapshot", lambda: AsyncSandbox.delete_snapshot(snapshot_id, **self.config.options)
        )

    async def fork(self, engine_id: str, timeout_s: float) -> EngineSandbox:
        """Create a running copy.

        Not idempotent, and the protocol has no key for it: if the response is lost, a copy is left behind, which `list`
        shows.
        """
        require_id(engine_id)

        async def fork() -> AsyncSandbox:
            copies = await AsyncSandbox.fork(
                engine_id, timeout=max(1, round(timeout_s)), count=1, **self.config.options
            )
            if isinstance(copies[0], Exception):
                raise copies[0]
            return copies[0]

        sandbox = await self._gate.control("fork", fork, idempotent=False)
        self._gate.remember(sandbox)
        return await self.info(sandbox.sandbox_id)

    # programs ---------------------------------------------------------------------------------------------------------

    async def run(
        self,
        engine_id: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] = NO_ENVS,
        timeout_s: float = TIMEOUT_S,
        limit: int = LIMIT,
        idempotent: bool = False,
    ) -> Ran:
        """Run a short program of the platform itself as the sandbox's default user. Users' commands go through
        `commands`."""
        return await self._programs.run(
            engine_id, argv, cwd=cwd, envs=envs, timeout_s=timeout_s, limit=limit, idempotent=idempotent
        )

    # files ------------------------------------------------------------------------------------------------------------

    async def read_file(self, engine_id: str, path: str) -> tuple[int | None, AsyncIterator[bytes]]:
        return await self._files.read(engine_id, path)

    async def write_file(self, engine_id: str, path: str, chunks: AsyncIterator[bytes]) -> int:
        return await self._files.write(engine_id, path, chunks)

    async def list_files(
        self,
        engine_id: str,
        path: str,
        depth: int = 1,
        *,
        first: int = 0,
        limit: int = 1000,
    ) -> FilePage:
        return await self._files.list(engine_id, path, depth, first, limit)

    async def stat(self, engine_id: str, path: str) -> FileEntry:
        return await self._files.stat(engine_id, path)

    async def remove(self, engine_id: str, path: str) -> None:
        await self._files.remove(engine_id, path)

    async def make_dir(self, engine_id: str, path: str) -> bool:
        return await self._files.make_dir(engine_id, path)

    async def close(self) -> None:
        """Close streams and handles. Sandboxes and their processes continue."""
        await self.commands.close()
        self._gate.drop_all()


def _to_denied(entry: SandboxLogEntry) -> Denied:
    fields = entry.fields.to_dict()
    port = str(fields.get("port", ""))
    return Denied(
        host=str(fields["host"])[:253],
        protocol=str(fields.get("protocol", ""))[:20],
        port=int(port) if port.isdigit() else None,
        at=entry.timestamp,
    )


def _normalize_key(idempotency_key: str) -> str:
    """Convert the key to the protocol's alphabet: lower-case letters, digits and hyphens."""
    key = re.sub(r"[^a-z0-9-]", "-", idempotency_key.lower())
    if not 1 <= len(key) <= 255:
        raise InvalidInputError("An idempotency key must have 1 to 255 characters.")
    return key


def _from_info(info: SandboxInfo) -> EngineSandbox:
    return EngineSandbox(
        id=info.sandbox_id,
        state=EngineState(info.state.value),
        template=info.name or info.template_id,
        started_at=info.started_at,
        ends_at=info.end_at,
        metadata=dict(info.metadata or {}),
    )


def _from_detail(detail: SandboxDetail) -> EngineSandbox:
    return _from_info(SandboxInfo._from_sandbox_detail(detail))
