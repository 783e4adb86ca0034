"""The engine as the platform sees it: all operations, through the official SDK only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from e2b import (
    ALL_TRAFFIC,
    AsyncSandbox,
    AsyncTemplate,
    ConnectionConfig,
    SandboxException,
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
from sandyard.kit.errors import InvalidInputError, SandyardError, UnsupportedError
from sandyard.platform.domain.sandboxes.e2b.commands import Commands
from sandyard.platform.domain.sandboxes.e2b.disk import EngineDisk
from sandyard.platform.domain.sandboxes.e2b.encryption_keys import EngineKeys
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineBusyError,
    EngineInvalidError,
    SandboxNotFoundError,
    translate_create,
)
from sandyard.platform.domain.sandboxes.e2b.files import Files
from sandyard.platform.domain.sandboxes.e2b.hosts import Hosts
from sandyard.platform.domain.sandboxes.e2b.ports import Ports
from sandyard.platform.domain.sandboxes.e2b.programs import Programs
from sandyard.platform.domain.sandboxes.e2b.streams import Streams
from sandyard.platform.domain.sandboxes.e2b.terminals import Terminals
from sandyard.platform.domain.sandboxes.e2b.transport import (
    BACKOFF,
    CircuitBreaker,
    EngineConfig,
    EngineTransport,
    require_id,
)

PAGE = 100
DENIED_PREFIX = "Blocked by the network policy:"
"""Prefix of log entries about denied connections."""
DENIED_HEADER = "x-sandyard-egress-denied"
"""Response header of endpoints that log denied connections."""
MAX_DENIED = 300
"""How many denied connections to read at most."""
ISOLATION_KEY = "sandyard.isolation"
"""Metadata key that requests an isolation level from the engine."""
LABELS_KEY = "sandyard.labels"
"""Metadata key that requests a host with these labels, such as `gpu=yes,zone=a`."""
CONTAINERS_KEY = "sandyard.containers"
"""Metadata key that requests containers in the sandbox from the engine."""
MAX_TIMEOUT_S = 24 * 3600
"""The longest timeout that E2B and our engine accept. The timeouts of sandboxes in use are extended long before it ends."""
FORK_TIMEOUT_S = 120.0
"""A copy's start command has 60 s to become ready. The engine then says so, which is better than a timeout."""
MAX_FORKS = 8
"""How many calls that fork one sandbox may be in progress. Its tenant can make each take until the timeout."""
SAMPLES_S = 120
"""How far back to ask for usage samples. Only the newest one is used."""


class EngineState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class EngineSandbox:
    """A sandbox as the engine reports it. `template` is its name if it has one, else its id. Times are in UTC.

    `isolation` is its isolation level, and `containers` whether it may run containers. None in `list`, and if the endpoint
    does not report it, such as E2B Cloud. `host_labels`: what its host has because that was required.
    """

    id: str
    state: EngineState
    template: str
    started_at: datetime
    ends_at: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)
    isolation: str | None = None
    containers: bool | None = None
    host_labels: Mapping[str, str] = field(default_factory=dict)
    cpu_count: int | None = None
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """The engine's latest sample. `cpu_percent` is the sum over all cores: 200 means two fully used cores."""

    cpu_percent: float
    cpu_count: int
    memory_bytes: int
    memory_total_bytes: int
    disk_bytes: int
    disk_total_bytes: int
    at: datetime


@dataclass(frozen=True, slots=True)
class DeniedConnection:
    """A denied connection of a sandbox. If `protocol` is "dns", the lookup of the name was denied."""

    host: str
    protocol: str
    port: int | None
    at: datetime


class SandboxEngine:
    """One engine endpoint. Methods take the engine's id of a sandbox.

    Only `resume` resumes a sandbox. Every method that works inside a sandbox raises SandboxNotRunningError if it is
    paused and SandboxNotFoundError if it is gone.
    """

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock | None = None,
        *,
        backoff: wait_base = BACKOFF,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.config = config
        self.breaker = breaker or CircuitBreaker(clock)
        self.transport = EngineTransport(config, self.breaker, clock, backoff)
        self._forks = Counter[str]()  # in progress, by the engine's id of their original
        self.hosts = Hosts(self.transport)
        self.disk = EngineDisk(self.transport)
        self.encryption_keys = EngineKeys(self.transport)
        self.files = Files(self.transport)
        self.programs = Programs(self.transport)
        self.commands = Commands(self.transport, self.files)
        self.terminals = Terminals(self.transport)
        self.streams = Streams(self.transport)
        self.ports = Ports(self.transport, self.programs)

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
        isolation: str | None = None,
        containers: bool | None = None,
        host_labels: Mapping[str, str] | None = None,
    ) -> EngineSandbox:
        """Create a sandbox and return it when it is running, within `create_timeout_s` including retries.

        The same key returns the same sandbox. When its timeout expires, it is paused with its memory, and only `resume`
        resumes it. If the endpoint supports it, its ports require the traffic token, because the platform decides who
        has access. `allowed` lists the only names and addresses it may connect to. None: all. `isolation` is the level it
        must have. None: the endpoint's default. `containers`: whether it may run containers. None: as its template says.
        `host_labels`: what its host must have, besides what its template requires. Raises TemplateNotFoundError, and
        UnsupportedError if the endpoint does not support one of them.
        """
        if isolation is not None:
            metadata = {**metadata, ISOLATION_KEY: isolation}
        if containers is not None:
            metadata = {**metadata, CONTAINERS_KEY: str(_format_bool(containers))}
        if host_labels:
            metadata = {**metadata, LABELS_KEY: ",".join(f"{name}={value}" for name, value in host_labels.items())}
        key = _normalize_key(idempotency_key)
        network: SandboxNetworkOpts = {"allow_public_traffic": False}
        if allowed:
            network |= {"allow_out": list(allowed), "deny_out": [ALL_TRAFFIC]}

        async def create() -> EngineSandbox:
            try:
                sandbox = await AsyncSandbox.create(
                    template=template,
                    timeout=_limit_timeout(timeout_s),
                    metadata=dict(metadata),
                    envs=dict(envs),
                    allow_internet_access=allowed is None or len(allowed) > 0,
                    network=network,
                    lifecycle={"on_timeout": {"action": "pause", "mode": "full"}, "auto_resume": False},
                    idempotency_key=key,
                    **self.config.options,
                )
            except SandboxException as error:
                raise translate_create(error, template, self.config.api_key) from error
            self.transport.remember(sandbox)
            created = await self.get_info(sandbox.sandbox_id)
            # E2B Cloud and other endpoints ignore metadata that they do not know.
            if isolation is not None and created.isolation != isolation:
                await AsyncSandbox.kill(sandbox.sandbox_id, **self.config.options)
                raise UnsupportedError(
                    f"The sandbox endpoint does not have the isolation level {isolation}. Change the project's isolation, or use a "
                    "Sandyard engine."
                )
            if containers and not created.containers:
                await AsyncSandbox.kill(sandbox.sandbox_id, **self.config.options)
                raise UnsupportedError(
                    "The sandbox endpoint cannot run containers in sandboxes. Change the project's setting, or use a Sandyard engine."
                )
            if host_labels and not host_labels.items() <= created.host_labels.items():
                await AsyncSandbox.kill(sandbox.sandbox_id, **self.config.options)
                raise UnsupportedError(
                    "The sandbox endpoint has no hosts with labels. Remove the labels from the project's settings, or use a Sandyard engine."
                )
            return created

        limit = self.config.create_timeout_s
        return await self.transport.call_api(
            "create",
            create,
            per_sandbox=True,
            within_s=limit,
            too_slow=f"The sandbox was not created within {limit:g} s. Try again; if it keeps failing, check whether the engine "
            "is overloaded.",
        )

    async def get_info(self, engine_id: str) -> EngineSandbox:
        """Return the sandbox's state without resuming it. Raises SandboxNotFoundError."""
        return _from_detail(await self.transport.get_detail(engine_id))

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

        return await self.transport.call_api("list", collect)

    async def pause(self, engine_id: str) -> None:
        """Pause the sandbox with its memory. Idempotent."""
        require_id(engine_id)
        self.transport.drop(engine_id)
        await self.transport.call_api(
            "pause", lambda: AsyncSandbox.pause(engine_id, mode="full", **self.config.options), per_sandbox=True
        )
        self.transport.drop(engine_id)

    async def resume(self, engine_id: str, timeout_s: float) -> None:
        """Resume the sandbox for at least that long. Idempotent."""
        require_id(engine_id)
        timeout = _limit_timeout(timeout_s)
        sandbox = await self.transport.call_api(
            "wake",
            lambda: AsyncSandbox.connect(engine_id, timeout=timeout, **self.config.options),
            per_sandbox=True,
        )
        self.transport.remember(sandbox)

    async def extend(self, engine_id: str, timeout_s: float) -> None:
        """Let the sandbox run for that long from now. Idempotent; never resumes it."""
        require_id(engine_id)
        timeout = _limit_timeout(timeout_s)
        await self.transport.call_api(
            "extend",
            lambda: AsyncSandbox.set_timeout(engine_id, timeout=timeout, **self.config.options),
            per_sandbox=True,
        )

    async def set_network(self, engine_id: str, allowed: Sequence[str] | None) -> None:
        """Set what a running sandbox may connect to from now on, including existing connections. Idempotent."""
        require_id(engine_id)
        update: SandboxNetworkUpdate = {"allow_internet_access": allowed is None or len(allowed) > 0}
        if allowed:
            update |= {"allow_out": list(allowed), "deny_out": [ALL_TRAFFIC]}
        await self.transport.call_api(
            "set_network",
            lambda: AsyncSandbox.update_network(engine_id, network=update, **self.config.options),
            per_sandbox=True,
        )

    async def list_denied_connections(self, engine_id: str) -> Sequence[DeniedConnection] | None:
        """Return the connections that the sandbox's network settings have denied, oldest first.

        None if the endpoint does not report them, such as E2B Cloud. Never resumes the sandbox. Not retried, because a
        slow engine would get more to do.
        """
        require_id(engine_id)

        async def read() -> Sequence[DeniedConnection] | None:
            client = client_async.get_api_client(ConnectionConfig(**self.config.options))
            answer = await get_v_2_sandboxes_sandbox_id_logs.asyncio_detailed(
                engine_id, client=client, search=DENIED_PREFIX, limit=MAX_DENIED
            )
            if answer.status_code == 404:
                raise SandboxNotFoundError
            if not isinstance(answer.parsed, SandboxLogsV2Response):
                raise handle_api_exception(answer)
            if answer.headers.get(DENIED_HEADER) is None:
                return None
            return [_parse_denied(entry) for entry in answer.parsed.logs if entry.fields.to_dict().get("host")]

        return await self.transport.call_api("denied", read, per_sandbox=True, attempts=1)

    async def kill(self, engine_id: str) -> bool:
        """Delete the sandbox, paused or not. Returns False if it was gone already. Idempotent."""
        self.transport.drop(engine_id)
        try:
            require_id(engine_id)
            return await self.transport.call_api(
                "kill", lambda: AsyncSandbox.kill(engine_id, **self.config.options), per_sandbox=True
            )
        except SandboxNotFoundError:
            return False
        finally:
            self.transport.drop(engine_id)

    async def get_usage(self, engine_id: str) -> Usage | None:
        """Return the usage, or None if there is no sample of the last two minutes, for example because the sandbox is
        paused. Never resumes it."""
        require_id(engine_id)
        since = datetime.fromtimestamp(self.transport.clock.now(), UTC) - timedelta(seconds=SAMPLES_S)
        samples = await self.transport.call_api(
            "usage",
            lambda: AsyncSandbox.get_metrics(engine_id, start=since, **self.config.options),
            per_sandbox=True,
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

    async def create_snapshot(self, engine_id: str, name: str | None = None) -> str:
        """Take a snapshot and return its id, which can be used as a template. Not idempotent: each call creates one."""
        require_id(engine_id)
        made = await self.transport.call_api(
            "snapshot",
            lambda: AsyncSandbox.create_snapshot(engine_id, name=name, **self.config.options),
            idempotent=False,
            per_sandbox=True,
        )
        return made.snapshot_id

    async def list_snapshots(self, engine_id: str) -> Sequence[str]:
        """Return the ids of this sandbox's snapshots, also if the sandbox is gone."""
        require_id(engine_id)

        async def collect() -> Sequence[str]:
            pages = AsyncSandbox.list_snapshots(sandbox_id=engine_id, limit=PAGE, **self.config.options)
            found: dict[str, None] = {}
            while pages.has_next:
                found |= {item.snapshot_id: None for item in await pages.next_items()}
            return tuple(found)

        return await self.transport.call_api("snapshots", collect)

    async def find_template_build(self, template: str) -> str | None:
        """Return the id of the build that new sandboxes of this template use.

        None if the endpoint does not say, such as E2B Cloud for templates of other users.
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

        return await self.transport.call_api("template_build", read)

    async def has_template(self, template: str) -> bool:
        """Return whether there is a template or snapshot of this name, also one that the key may not use. Tries once."""
        return await self.transport.call_api(
            "template_exists", lambda: AsyncTemplate.exists(template, **self.config.options), attempts=1
        )

    async def check_isolation(self, template: str, isolation: str | None, containers: bool | None) -> None:
        """Raise EngineInvalidError, with the reason, if a sandbox of this template could not have this isolation level, or
        run containers. None: as the template says. Endpoints other than Sandyard's engine are not asked. Tries once."""
        given = {"template": template, "level": isolation, "containers": _format_bool(containers)}
        query = {name: value for name, value in given.items() if value is not None}

        async def ask() -> None:
            client = client_async.get_api_client(ConnectionConfig(**self.config.options))
            answer = await client.get_async_httpx_client().get("/isolation", params=query)
            if answer.status_code in (400, 501):
                raise EngineInvalidError(str(answer.json()["message"]))

        await self.transport.call_api("check_isolation", ask, attempts=1)

    async def read_status(self) -> Mapping[str, Any] | None:
        """Return the engine's report about itself, or None if the endpoint is not Sandyard's engine. Tries once."""

        async def ask() -> Mapping[str, Any] | None:
            client = client_async.get_api_client(ConnectionConfig(**self.config.options))
            answer = await client.get_async_httpx_client().get("/status")
            found = answer.json() if answer.status_code == 200 else None
            return found if isinstance(found, dict) else None

        return await self.transport.call_api("status", ask, attempts=1)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot. Idempotent."""
        await self.transport.call_api(
            "delete_snapshot",
            lambda: AsyncSandbox.delete_snapshot(snapshot_id, **self.config.options),
            per_sandbox=True,
        )

    async def fork(self, engine_id: str, timeout_s: float, count: int = 1) -> Sequence[EngineSandbox | SandyardError]:
        """Create running copies from one instant. Each of them succeeds or fails independently.

        Not idempotent, and the protocol has no key for it: if the response is lost, copies are left behind, which `list`
        shows. If all copies have failed, raises the error of the first. Raises EngineBusyError if MAX_FORKS calls for this
        sandbox are in progress.
        """
        require_id(engine_id)
        options = self.config.options
        options["request_timeout"] = max(FORK_TIMEOUT_S, self.config.request_timeout_s)

        async def fork() -> Sequence[AsyncSandbox | Exception]:
            copies = await AsyncSandbox.fork(engine_id, timeout=_limit_timeout(timeout_s), count=count, **options)
            errors = [copy for copy in copies if isinstance(copy, Exception)]
            if len(errors) == len(copies):
                raise errors[0]
            return copies

        if self._forks[engine_id] >= MAX_FORKS:
            raise EngineBusyError(f"{MAX_FORKS} forks of this sandbox are in progress. Try again when one is done.")
        self._forks[engine_id] += 1
        try:
            copies = await self.transport.call_api("fork", fork, idempotent=False, per_sandbox=True)
        finally:
            self._forks[engine_id] -= 1
            if not self._forks[engine_id]:
                del self._forks[engine_id]
        return [await self._describe_copy(copy) for copy in copies]

    async def _describe_copy(self, copy: AsyncSandbox | Exception) -> EngineSandbox | SandyardError:
        try:
            if isinstance(copy, Exception):
                with self.transport.translate_errors():
                    raise copy
            self.transport.remember(copy)
            return await self.get_info(copy.sandbox_id)
        except SandyardError as error:
            return error

    async def close(self) -> None:
        """Close streams and handles. Sandboxes and their processes continue."""
        await self.commands.close()
        self.transport.drop_all()


def _format_bool(value: bool | None) -> str | None:
    return None if value is None else str(value).lower()


def _parse_denied(entry: SandboxLogEntry) -> DeniedConnection:
    fields = entry.fields.to_dict()
    port = str(fields.get("port", ""))
    return DeniedConnection(
        host=str(fields["host"])[:253],
        protocol=str(fields.get("protocol", ""))[:20],
        port=int(port) if port.isdigit() else None,
        at=entry.timestamp,
    )


def _limit_timeout(timeout_s: float) -> int:
    return min(max(1, round(timeout_s)), MAX_TIMEOUT_S)


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
        cpu_count=info.cpu_count,
        memory_mb=info.memory_mb,
    )


def _from_detail(detail: SandboxDetail) -> EngineSandbox:
    isolation = detail.additional_properties.get("isolation")
    containers = detail.additional_properties.get("containers")
    labels = detail.additional_properties.get("hostLabels")
    return replace(
        _from_info(SandboxInfo._from_sandbox_detail(detail)),
        isolation=isolation[:40] if isinstance(isolation, str) else None,
        containers=containers if isinstance(containers, bool) else None,
        host_labels={str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {},
    )
