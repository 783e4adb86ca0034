"""The way every call takes: configured, breaker, errors translated, tried again. And the handles of sandboxes.

A handle is the SDK's object for one sandbox: its address and access token. It is made from what create, connect or a
plain read of the sandbox answered, and making one never wakes a sandbox: only `connect` does that, and only `wake`
connects, and who needs a traffic token of a sandbox that runs.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from e2b import AsyncSandbox, ConnectionConfig
from e2b.api import client_async, handle_api_exception
from e2b.api.client.api.sandboxes import get_sandboxes_sandbox_id
from e2b.api.client.models import SandboxDetail, SandboxState
from packaging.version import Version
from tenacity.wait import wait_base

from sandyard.kit.clock import Clock
from sandyard.kit.tasks import heeded
from sandyard.platform.domain.sandboxes.e2b.breaker import Breaker
from sandyard.platform.domain.sandboxes.e2b.config import EngineConfig
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineAuthError,
    EngineError,
    EngineNotConfiguredError,
    SandboxNotFoundError,
    SandboxNotRunningError,
    SandboxUnreachableError,
    translate,
)
from sandyard.platform.domain.sandboxes.e2b.retry import BACKOFF, retrying

client_async.connection_retries = 0  # type: ignore[attr-defined]
"""Retries are ours: the SDK's (E2B_CONNECTION_RETRIES) make every answer of an engine that is away 2.5 s late."""
client_async.max_connections = max(4096, client_async.max_connections)  # type: ignore[attr-defined]
"""Over plain HTTP every command, terminal and transfer under way has a connection of its own; with the SDK's 200
(E2B_MAX_CONNECTIONS) the next call, be it a pause, would wait until one of them has ended."""

HANDLES_KEPT = 512
_REFUSED = "The sandbox rejected the access token issued by the engine. Try again, or create a new sandbox."
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

T = TypeVar("T")


class Handle:
    """`relays` are the users for whom the relay is known to be in the sandbox; `python` False: it has no python3;
    `token_due`: its ports want a traffic token that nobody has asked for yet."""

    __slots__ = ("asking", "python", "relays", "sandbox", "token_due")

    def __init__(self, sandbox: AsyncSandbox, *, token_due: bool = False) -> None:
        self.sandbox = sandbox
        self.relays: set[str] = set()
        self.python = True
        self.token_due = token_due
        self.asking = asyncio.Lock()


class Gate:
    def __init__(self, config: EngineConfig, breaker: Breaker, clock: Clock, wait: wait_base = BACKOFF) -> None:
        self.config = config
        self.clock = clock
        self._breaker = breaker
        self._wait = wait
        self._handles: OrderedDict[str, Handle] = OrderedDict()

    async def control(self, verb: str, call: Callable[[], Awaitable[T]], *, idempotent: bool = True) -> T:
        """A call of the control API."""

        async def attempt() -> T:
            async with self._breaker.guard():
                return await self._translated(call)

        return await self._retrying(verb, attempt, idempotent)

    async def inside(
        self, verb: str, engine_id: str, call: Callable[[Handle], Awaitable[T]], *, idempotent: bool, attempts: int = 3
    ) -> T:
        """A call into a running sandbox. SandboxNotRunningError: it is paused, and stays so."""

        async def attempt() -> T:
            handle = await self.handle(engine_id)
            try:
                # What happens inside a sandbox is its tenant's doing and says nothing about the engine: whoever failed there
                # begins anew with a control call, and those count
                async with self._breaker.guard(counts=False):
                    return await self._translated(lambda: call(handle))
            except EngineError as error:
                if error.transient or isinstance(
                    error, SandboxNotRunningError | SandboxNotFoundError | EngineAuthError
                ):
                    self.drop(engine_id)
                if isinstance(error, SandboxNotRunningError | SandboxNotFoundError):
                    raise await self._why(engine_id) from error
                if isinstance(error, EngineAuthError):
                    raise SandboxUnreachableError(_REFUSED, unsent=True) from error
                raise

        return await self._retrying(verb, attempt, idempotent, attempts)

    async def handle(self, engine_id: str) -> Handle:
        handle = self._handles.get(engine_id)
        if handle is not None:
            self._handles.move_to_end(engine_id)
            return handle
        detail = await self.detail(engine_id)
        if detail.state != SandboxState.RUNNING:
            raise SandboxNotRunningError
        # others may have asked at the same time: they all get the same one
        return self._handles.get(engine_id) or self.remember(self._build(detail), token_due=_private(detail))

    async def with_token(self, engine_id: str) -> AsyncSandbox:
        """The sandbox with its traffic token, if its ports want one. Only `connect` tells it, which would wake a sandbox: one
        that has just been seen running is asked, for no longer than it has anyway. SandboxNotRunningError."""
        handle = await self.handle(engine_id)
        async with handle.asking:  # a page asks for a hundred files at once
            if handle.token_due:
                handle.sandbox = await self.control(
                    "token", lambda: AsyncSandbox.connect(engine_id, timeout=1, **self.config.options)
                )
                handle.token_due = False
        return handle.sandbox

    def remember(self, sandbox: AsyncSandbox, *, token_due: bool = False) -> Handle:
        handle = self._handles[sandbox.sandbox_id] = Handle(sandbox, token_due=token_due)
        while len(self._handles) > HANDLES_KEPT:
            self._handles.popitem(last=False)
        return handle

    def drop(self, engine_id: str) -> None:
        self._handles.pop(engine_id, None)

    def drop_all(self) -> None:
        self._handles.clear()

    async def detail(self, engine_id: str) -> SandboxDetail:
        """What the control API says of a sandbox. The SDK's own `get_info` hides the access token."""
        require_id(engine_id)

        async def read() -> SandboxDetail:
            client = client_async.get_api_client(ConnectionConfig(**self.config.options))
            answer = await get_sandboxes_sandbox_id.asyncio_detailed(engine_id, client=client)
            if answer.status_code == 404:
                raise SandboxNotFoundError
            if isinstance(answer.parsed, SandboxDetail):
                return answer.parsed
            raise handle_api_exception(answer)

        return await self.control("info", read)

    async def _why(self, engine_id: str) -> EngineError:
        """Why the sandbox's own address said that there is none."""
        try:
            detail = await self.detail(engine_id)
        except EngineError as error:
            return error
        return SandboxUnreachableError() if detail.state == SandboxState.RUNNING else SandboxNotRunningError()

    async def _translated(self, call: Callable[[], Awaitable[T]]) -> T:
        if not self.config.api_key:
            raise EngineNotConfiguredError
        try:
            with heeded():  # the SDK has `wait_for` around much of what it does
                return await call()
        except Exception as error:
            ours = translate(error, self.config.api_key)
            if ours is error:
                raise
            raise ours from error

    async def _retrying(self, verb: str, attempt: Callable[[], Awaitable[T]], idempotent: bool, attempts: int = 3) -> T:
        return await retrying(
            verb, attempt, clock=self.clock, idempotent=idempotent, wait=self._wait, attempts=attempts
        )

    def _build(self, detail: SandboxDetail) -> AsyncSandbox:
        headers = {"E2b-Sandbox-Id": detail.sandbox_id, "E2b-Sandbox-Port": str(ConnectionConfig.envd_port)}
        token = detail.envd_access_token if isinstance(detail.envd_access_token, str) else None
        if token is not None:
            headers["X-Access-Token"] = token
        return AsyncSandbox(
            sandbox_id=detail.sandbox_id,
            sandbox_domain=detail.domain if isinstance(detail.domain, str) else None,
            envd_version=Version(detail.envd_version),
            envd_access_token=token,
            traffic_access_token=None,
            connection_config=ConnectionConfig(extra_sandbox_headers=headers, **self.config.options),
        )


def _private(detail: SandboxDetail) -> bool:
    return bool(detail.network) and getattr(detail.network, "allow_public_traffic", None) is False


def require_id(engine_id: str) -> None:
    """Ids become parts of paths: what cannot be one names no sandbox."""
    if not _ID.fullmatch(engine_id):
        raise SandboxNotFoundError
