"""The path of every engine call: configuration check, circuit breaker, error translation, retries. Also keeps handles
of sandboxes.

A handle is the SDK's object for one sandbox, with its address and access token. It is created from the response to
create, connect or a plain read of the sandbox. Creating a handle never resumes a sandbox: only `connect` does, which is
called only by `wake` and to get the traffic token of a running sandbox.
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
from sandyard.kit.tasks import propagate_cancellation
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
"""Retries are ours: those of the SDK (E2B_CONNECTION_RETRIES) would delay every error of an unavailable engine by 2.5 s."""
client_async.max_connections = max(4096, client_async.max_connections)  # type: ignore[attr-defined]
"""Over plain HTTP every running command, terminal and transfer has its own connection; with the SDK's limit of 200
(E2B_MAX_CONNECTIONS) the next call, such as a pause, would wait until one of them has ended."""

HANDLES_KEPT = 512
_REFUSED = "The sandbox rejected the access token issued by the engine. Try again, or create a new sandbox."
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

T = TypeVar("T")


class Handle:
    """Handle of a sandbox.

    `relays` are the users for whom the relay is known to be installed in the sandbox. `python` False: it has no
    python3. `token_due`: its ports require a traffic token that has not been requested yet.
    """

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
        """Call the control API."""

        async def attempt() -> T:
            async with self._breaker.guard():
                return await self._call_translated(call)

        return await self._retry(verb, attempt, idempotent)

    async def inside(
        self, verb: str, engine_id: str, call: Callable[[Handle], Awaitable[T]], *, idempotent: bool, attempts: int = 3
    ) -> T:
        """Call into a running sandbox. Raises SandboxNotRunningError if it is paused, without resuming it."""

        async def attempt() -> T:
            handle = await self.handle(engine_id)
            try:
                # The outcome inside a sandbox depends on its tenant and says nothing about the engine: after a failure
                # the next attempt starts with a control call, and those count
                async with self._breaker.guard(counts=False):
                    return await self._call_translated(lambda: call(handle))
            except EngineError as error:
                if error.transient or isinstance(
                    error, SandboxNotRunningError | SandboxNotFoundError | EngineAuthError
                ):
                    self.drop(engine_id)
                if isinstance(error, SandboxNotRunningError | SandboxNotFoundError):
                    raise await self._explain_missing(engine_id) from error
                if isinstance(error, EngineAuthError):
                    raise SandboxUnreachableError(_REFUSED, unsent=True) from error
                raise

        return await self._retry(verb, attempt, idempotent, attempts)

    async def handle(self, engine_id: str) -> Handle:
        handle = self._handles.get(engine_id)
        if handle is not None:
            self._handles.move_to_end(engine_id)
            return handle
        detail = await self.detail(engine_id)
        if detail.state != SandboxState.RUNNING:
            raise SandboxNotRunningError
        # concurrent callers all get the same handle
        return self._handles.get(engine_id) or self.remember(self._build(detail), token_due=_needs_token(detail))

    async def with_token(self, engine_id: str) -> AsyncSandbox:
        """Return the sandbox with its traffic token, if its ports require one. Raises SandboxNotRunningError.

        Only `connect` returns the token, and it would resume a paused sandbox. It is therefore called only for a
        sandbox that has just been seen running, with a timeout that does not extend its time.
        """
        handle = await self.handle(engine_id)
        async with handle.asking:  # a page requests a hundred files at once
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
        """Return the control API's data of a sandbox. The SDK's own `get_info` hides the access token."""
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

    async def _explain_missing(self, engine_id: str) -> EngineError:
        """Return the reason why the sandbox's own address reported that it does not exist."""
        try:
            detail = await self.detail(engine_id)
        except EngineError as error:
            return error
        return SandboxUnreachableError() if detail.state == SandboxState.RUNNING else SandboxNotRunningError()

    async def _call_translated(self, call: Callable[[], Awaitable[T]]) -> T:
        if not self.config.api_key:
            raise EngineNotConfiguredError
        try:
            with propagate_cancellation():  # the SDK wraps much of its work in `wait_for`
                return await call()
        except Exception as error:
            ours = translate(error, self.config.api_key)
            if ours is error:
                raise
            raise ours from error

    async def _retry(self, verb: str, attempt: Callable[[], Awaitable[T]], idempotent: bool, attempts: int = 3) -> T:
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


def _needs_token(detail: SandboxDetail) -> bool:
    return bool(detail.network) and getattr(detail.network, "allow_public_traffic", None) is False


def require_id(engine_id: str) -> None:
    """Raise SandboxNotFoundError for an invalid id. Ids become parts of paths."""
    if not _ID.fullmatch(engine_id):
        raise SandboxNotFoundError
