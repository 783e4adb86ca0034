"""The only path to the engine: configuration, error translation, circuit breaker, retries, and handles of sandboxes.

A handle is the SDK's object for one sandbox, with its address and access token. It is created from the response to
create, connect or a plain read of the sandbox. Creating a handle never resumes a sandbox: only `connect` does, which is
called only by `SandboxEngine.resume` and to get the traffic token of a running sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, TypeVar

import tenacity
from e2b import AsyncSandbox, ConnectionConfig
from e2b.api import client_async, handle_api_exception
from e2b.api.client.api.sandboxes import get_sandboxes_sandbox_id
from e2b.api.client.models import SandboxDetail, SandboxState
from packaging.version import Version
from tenacity.wait import wait_base

from sandyard.kit import telemetry
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.tasks import propagate_cancellation
from sandyard.platform.domain.sandboxes.e2b.errors import (
    CircuitOpenError,
    EngineAuthError,
    EngineBusyError,
    EngineError,
    EngineNotConfiguredError,
    EngineTimeoutError,
    SandboxNotFoundError,
    SandboxNotRunningError,
    SandboxUnreachableError,
    translate,
)

log = get_logger(__name__)

client_async.connection_retries = 0  # type: ignore[attr-defined]
"""Retries are ours: those of the SDK (E2B_CONNECTION_RETRIES) would delay every error of an unavailable engine by 2.5 s."""
client_async.max_connections = max(4096, client_async.max_connections)  # type: ignore[attr-defined]
"""Over plain HTTP every running command, terminal and transfer has its own connection; with the SDK's limit of 200
(E2B_MAX_CONNECTIONS) the next call, such as a pause, would wait until one of them has ended. `UserConnections` limits how many
one user may hold."""

HANDLES_KEPT = 512
ATTEMPTS = 3
BACKOFF = tenacity.wait_exponential(multiplier=1, min=1, max=9) + tenacity.wait_random(0, 1)
"""Delays of 1 to 10 s."""
CLOUD_DOMAIN = "e2b.app"
_REFUSED = "The sandbox rejected the access token issued by the engine. Try again, or create a new sandbox."
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

T = TypeVar("T")


class ApiOptions(TypedDict, total=False):
    """SDK options that we pass with every call."""

    api_key: str
    api_url: str
    sandbox_url: str | None
    domain: str
    debug: bool
    retries: int
    request_timeout: float
    api_headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Connection settings of an engine.

    `api_url` None means E2B Cloud, or the self-hosted E2B at `domain`. With `sandbox_url`, all sandboxes are reached
    through that address.
    """

    api_key: Secret | None
    api_url: str | None = None
    sandbox_url: str | None = None
    domain: str | None = None
    request_timeout_s: float = 30.0
    create_timeout_s: float = 30.0

    @property
    def options(self) -> ApiOptions:
        """Return all options explicitly: the SDK's environment variables are not used, and retries are ours."""
        domain = self.domain or CLOUD_DOMAIN
        return {
            "api_key": self.api_key.reveal() if self.api_key else "",
            "api_url": self.api_url or f"https://api.{domain}",
            "sandbox_url": self.sandbox_url,
            "domain": domain,
            "debug": False,
            "retries": 0,
            "request_timeout": self.request_timeout_s,
            "api_headers": telemetry.make_headers(),
        }


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Opens after `threshold` transient failures without a success in between.

    While it is open, every call fails at once with CircuitOpenError; after `cooldown_s` one call is let through as a
    probe. Any response of the engine, even an error, counts as a success, because the engine is reachable. Only calls
    that no tenant can delay count fully: otherwise one tenant could close the engine to all.
    """

    def __init__(self, clock: Clock | None = None, *, threshold: int = 5, cooldown_s: float = 10.0) -> None:
        self._clock = clock or SystemClock()
        self._threshold = threshold
        self._cooldown = cooldown_s
        self._failures = 0
        self._probing = False
        self.reason: str | None = None
        self.opened_at: float | None = None

    @property
    def state(self) -> CircuitState:
        """Return the state that a call would find now."""
        if self.opened_at is None:
            return CircuitState.CLOSED
        if self._probing or self._clock.now() - self.opened_at >= self._cooldown:
            return CircuitState.HALF_OPEN
        return CircuitState.OPEN

    @contextlib.asynccontextmanager
    async def guard(self, *, counts: bool = True, per_sandbox: bool = False) -> AsyncIterator[None]:
        """Wrap one attempt.

        `counts` False: its outcome says nothing about the engine as a whole, so it cannot be a probe. `per_sandbox`: its
        duration depends on one sandbox, so it cannot be a probe either, and of its failures only those to connect count.
        """
        probe = self._admit(counts and not per_sandbox)
        try:
            yield
        except EngineError as error:
            if counts and (not error.transient or isinstance(error, EngineBusyError)):
                self._record_success()
            elif counts and _says_engine_failed(error, per_sandbox):
                self._record_failure(error)
            raise
        else:
            if counts:
                self._record_success()
        finally:
            if probe:
                self._probing = False

    def _admit(self, counts: bool) -> bool:
        state = self.state
        if state is CircuitState.CLOSED:
            return False
        if counts and state is CircuitState.HALF_OPEN and not self._probing:
            self._probing = True
            return True
        assert self.opened_at is not None
        left = max(1, round(self.opened_at + self._cooldown - self._clock.now()))
        raise CircuitOpenError(
            f"The engine failed {self._failures} times in a row and is retried in {left} s. Last error: {self.reason}",
            unsent=True,
        )

    def _record_success(self) -> None:
        if self.opened_at is not None:
            log.info("breaker_closed")
        self._failures = 0
        self.reason = self.opened_at = None

    def _record_failure(self, error: EngineError) -> None:
        self._failures += 1
        self.reason = error.message
        if self._failures >= self._threshold:
            if self.opened_at is None:
                log.warning("breaker_opened", failures=self._failures, reason=error.message)
            self.opened_at = self._clock.now()


def _says_engine_failed(error: EngineError, per_sandbox: bool) -> bool:
    """Return whether a transient error is one of the engine, and not of a single sandbox."""
    if isinstance(error, SandboxUnreachableError | CircuitOpenError):
        return False
    return error.unsent or not per_sandbox


async def retry_transient_errors(
    verb: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    clock: Clock,
    idempotent: bool,
    wait: wait_base = BACKOFF,
    attempts: int = ATTEMPTS,
) -> T:
    """Return the result of `attempt`, or raise its last error.

    A call that is not `idempotent` is repeated only after failures that cannot have had an effect.
    """

    def is_retryable(error: BaseException) -> bool:
        if not isinstance(error, EngineError) or isinstance(error, CircuitOpenError):
            return False
        return error.transient and (idempotent or error.unsent)

    def log_retry(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0.0
        log.warning("engine_retry", verb=verb, attempt=state.attempt_number, pause_s=pause, reason=str(error))

    retryer = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(attempts),
        wait=wait,
        retry=tenacity.retry_if_exception(is_retryable),
        sleep=clock.sleep,
        before_sleep=log_retry,
        reraise=True,
    )
    return await retryer(attempt)


class SandboxHandle:
    """Handle of a sandbox.

    `relays` are the users for whom the relay is known to be installed in the sandbox. `python` False: it has no
    python3. `token_due`: its ports require a traffic token that has not been requested yet.
    """

    __slots__ = ("python", "relays", "sandbox", "token_due", "token_lock")

    def __init__(self, sandbox: AsyncSandbox, *, token_due: bool = False) -> None:
        self.sandbox = sandbox
        self.relays: set[str] = set()
        self.python = True
        self.token_due = token_due
        self.token_lock = asyncio.Lock()


class EngineTransport:
    """Calls of one engine. Every SDK call of this package goes through `call_api` or `call_sandbox`."""

    def __init__(self, config: EngineConfig, breaker: CircuitBreaker, clock: Clock, wait: wait_base = BACKOFF) -> None:
        self.config = config
        self.clock = clock
        self._breaker = breaker
        self._wait = wait
        self._handles: OrderedDict[str, SandboxHandle] = OrderedDict()

    async def call_api(
        self,
        verb: str,
        call: Callable[[], Awaitable[T]],
        *,
        idempotent: bool = True,
        per_sandbox: bool = False,
        attempts: int = ATTEMPTS,
        within_s: float | None = None,
        too_slow: str | None = None,
    ) -> T:
        """Call the control API.

        `per_sandbox`: the engine does something with one sandbox, or waits for it, so that its tenant can influence how
        long the call takes. The circuit breaker ignores its timeouts and lost responses.
        If all attempts together take longer than `within_s`, raises the error of the last one, or EngineTimeoutError
        with the message `too_slow` if none has failed.
        """
        last: EngineError | None = None

        async def attempt() -> T:
            nonlocal last
            try:
                if per_sandbox and self._breaker.state is CircuitState.HALF_OPEN:
                    await self._probe()
                async with self._breaker.guard(per_sandbox=per_sandbox):
                    with telemetry.span(f"engine.{verb}"):
                        return await self._call(call)
            except EngineError as error:
                last = error
                raise

        try:
            async with asyncio.timeout(within_s):
                return await retry_transient_errors(
                    verb, attempt, clock=self.clock, idempotent=idempotent, wait=self._wait, attempts=attempts
                )
        except TimeoutError:
            raise last or EngineTimeoutError(too_slow) from None

    async def call_sandbox(
        self,
        verb: str,
        engine_id: str,
        call: Callable[[SandboxHandle], Awaitable[T]],
        *,
        idempotent: bool,
        attempts: int = ATTEMPTS,
    ) -> T:
        """Call into a running sandbox. Raises SandboxNotRunningError if it is paused, without resuming it."""

        async def attempt() -> T:
            handle = await self.get_handle(engine_id)
            try:
                # The outcome inside a sandbox depends on its tenant and says nothing about the engine: after a failure
                # the next attempt starts with a control call, and those count
                async with self._breaker.guard(counts=False):
                    with telemetry.span(f"sandbox.{verb}", sandbox=engine_id):
                        return await self._call(lambda: call(handle))
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

        return await retry_transient_errors(
            verb, attempt, clock=self.clock, idempotent=idempotent, wait=self._wait, attempts=attempts
        )

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise our errors in place of those of the SDK. For streams that are read after the call that opened them."""
        try:
            yield
        except Exception as error:
            ours = translate(error, self.config.api_key)
            if ours is error:
                raise
            try:
                raise ours from error
            finally:
                del ours  # its traceback refers to this frame

    async def get_handle(self, engine_id: str) -> SandboxHandle:
        handle = self._handles.get(engine_id)
        if handle is not None:
            self._handles.move_to_end(engine_id)
            return handle
        detail = await self.get_detail(engine_id)
        if detail.state != SandboxState.RUNNING:
            raise SandboxNotRunningError
        # concurrent callers all get the same handle
        return self._handles.get(engine_id) or self.remember(self.build_sandbox(detail), token_due=_needs_token(detail))

    async def get_sandbox_with_token(self, engine_id: str) -> AsyncSandbox:
        """Return the sandbox with its traffic token, if its ports require one. Raises SandboxNotRunningError.

        Only `connect` returns the token, and it would resume a paused sandbox. It is therefore called only for a
        sandbox that has just been seen running, with a timeout that does not extend its time.
        """
        handle = await self.get_handle(engine_id)
        async with handle.token_lock:  # a page requests a hundred files at once
            if handle.token_due:
                handle.sandbox = await self.call_api(
                    "token",
                    lambda: AsyncSandbox.connect(engine_id, timeout=1, **self.config.options),
                    per_sandbox=True,
                )
                handle.token_due = False
        return handle.sandbox

    def remember(self, sandbox: AsyncSandbox, *, token_due: bool = False) -> SandboxHandle:
        handle = self._handles[sandbox.sandbox_id] = SandboxHandle(sandbox, token_due=token_due)
        while len(self._handles) > HANDLES_KEPT:
            self._handles.popitem(last=False)
        return handle

    def drop(self, engine_id: str) -> None:
        self._handles.pop(engine_id, None)

    def drop_all(self) -> None:
        self._handles.clear()

    async def get_detail(self, engine_id: str) -> SandboxDetail:
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

        return await self.call_api("info", read)

    async def _probe(self) -> None:
        """Make the cheapest call that every endpoint has, to close the breaker or to open it again."""
        async with self._breaker.guard():
            await self._call(AsyncSandbox.list(limit=1, **self.config.options).next_items)

    async def _explain_missing(self, engine_id: str) -> EngineError:
        """Return the reason why the sandbox's own address reported that it does not exist."""
        try:
            detail = await self.get_detail(engine_id)
        except EngineError as error:
            return error
        return SandboxUnreachableError() if detail.state == SandboxState.RUNNING else SandboxNotRunningError()

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        if not self.config.api_key:
            raise EngineNotConfiguredError
        with self.translate_errors(), propagate_cancellation():  # the SDK wraps much of its work in `wait_for`
            return await call()

    def build_sandbox(self, detail: SandboxDetail) -> AsyncSandbox:
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
