"""Proxy agents' requests to providers: authenticate, check what is allowed and affordable, add the real key, and count usage."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from sandyard.kit import bounded_json
from sandyard.kit.destinations import Destinations, PrivateAddressError
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.pacing import take_turn
from sandyard.kit.secret import Secret
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import ModelProvider, Project, Session
from sandyard.platform.domain.models import apis
from sandyard.platform.domain.models.apis import ModelRequest
from sandyard.platform.domain.models.budgets import Budgets
from sandyard.platform.domain.models.capability import Capabilities
from sandyard.platform.domain.models.clients import ServerClients
from sandyard.platform.domain.models.faults import Fault, classify_error, classify_response, make_label
from sandyard.platform.domain.models.hosted_tools import list_refused_tools
from sandyard.platform.domain.models.ledger import Ledger
from sandyard.platform.domain.models.model import MAX_TOKENS, ModelApi, OverBudgetError, Price, Tokens, compute_cost
from sandyard.platform.domain.models.presets import find_price
from sandyard.platform.domain.models.providers import Providers
from sandyard.platform.domain.models.redaction import Redactor
from sandyard.platform.domain.models.request_body import MAX_VALUES, InvalidBodyError, parse_body
from sandyard.platform.domain.models.token_counter import BYTES_PER_TOKEN, TokenCounter
from sandyard.platform.domain.models.tunnel import ResponseWriter, TunnelRequest
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.service import owner_has_access

log = get_logger(__name__)

RECORD_USAGE_EVERY_S = 10.0
"""How often the usage of a response in progress is recorded, so that it is counted if the platform dies."""
TOKENS_PER_SECOND = 30
"""Estimated output of a request that the agent abandons before its usage is reported: a model may think without sending anything."""
_PARSE_IN_THREAD_BYTES = 32 << 10
"""Larger bodies are parsed in a thread."""
_MAX_ERROR_BYTES = 64 << 10
"""Only this much of an error response is read."""


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The sender of a request. `get_turn_id` returns the turn that it is counted for, if any."""

    sandbox_id: str
    session_id: str
    get_turn_id: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class _Call:
    """One parsed request."""

    kind: ModelApi
    provider: ModelProvider
    session: Session
    turn_id: str | None
    target: ModelRequest
    request: TunnelRequest
    model: str | None = None
    size: int = 0
    """Size of the body sent, which is dropped afterwards."""

    @property
    def label(self) -> str:
        return make_label(self.provider.name, self.provider.base_url)

    @property
    def price(self) -> Price | None:
        return find_price(self.provider.base_url, self.provider.prices, self.model)


class _RequestRejected(Exception):  # noqa: N818 - a response, not an error of the platform
    def __init__(self, kind: ModelApi, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.status, self.code, self.message = kind, status, code, message


class _Outcome:
    """The outcome of a call, as far as it is known."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.status = 0
        self.tokens = Tokens()
        self.error: str | None = None
        self.sent = False
        """The provider has received the request and, as far as known, processes it."""
        self.reported = False
        """The provider has reported its output."""
        self.record_usage: Callable[[Tokens], Awaitable[None]] | None = None
        """Records the usage so far."""

    @property
    def duration_ms(self) -> int:
        return round((time.monotonic() - self.began) * 1000)


class Gateway:
    """Gateway to providers.

    When the budget is used up, it responds 402 with `x-should-retry: false`, which no agent's client retries (unlike 429 and 5xx).
    """

    def __init__(
        self,
        database: Database,
        providers: Providers,
        capabilities: Capabilities,
        budgets: Budgets,
        ledger: Ledger,
        *,
        destinations: Destinations,
        timeout_s: float,
        on_over_budget: Callable[[str, str], Coroutine[Any, Any, None]],
        on_outcome: Callable[[str, Fault | None, float], None],
        on_refused: Callable[[str, Fault], Coroutine[Any, Any, None]],
    ) -> None:
        """`on_outcome` is called with the outcome and start of each request of a turn, before the agent sees it.

        For a successful response it is called when the response starts and when it is complete. `on_refused` is called if all other requests
        would be rejected too.
        """
        self._database = database
        self._providers = providers
        self._capabilities = capabilities
        self._budgets = budgets
        self._ledger = ledger
        self._on_over_budget = on_over_budget
        self._on_outcome = on_outcome
        self._on_refused = on_refused
        self.tasks = TaskSet("models")
        self._clients = ServerClients(destinations, timeout_s=timeout_s)

    async def close(self) -> None:
        await self.tasks.wait(2)
        await self.tasks.cancel()
        await self._clients.close()

    def get_client(self, provider: ModelProvider) -> httpx.AsyncClient:
        return self._clients.get_client(provider.base_url, named_by_admin=provider.named_by_admin)

    async def serve(self, origin: RequestOrigin, request: TunnelRequest, writer: ResponseWriter) -> None:
        """Serve a request. Always responds, unless cancelled."""
        try:
            call = await self._authorize(origin, request)
            if call.target.counted:
                await self._proxy_and_count(call, writer)
            else:
                await self._proxy(call, writer, _Outcome())
        except _RequestRejected as refused:
            headers, body = apis.format_refusal(refused.kind, refused.status, refused.code, refused.message)
            await writer.send_head(refused.status, headers)
            await writer.send_data(b"" if request.method == "HEAD" else body)
            await writer.end()

    # authorization -----------------------------------------------------------------------------------------------------

    async def _authorize(self, origin: RequestOrigin, request: TunnelRequest) -> _Call:
        target, _, query = request.target.partition("?")
        provider_id, _, rest = target.lstrip("/").partition("/")
        if not self._capabilities.is_valid(origin.sandbox_id, apis.list_capabilities(request.headers, query)):
            raise _RequestRejected(
                ModelApi.OPENAI,
                401,
                "unauthenticated",
                "Invalid API key. Use the key that the platform has set for the agents in this sandbox.",
            )
        async with self._database.reading() as reading:
            session = await reading.get(Session, origin.session_id)
            if session is not None and not await owner_has_access(reading, session):
                session = None
        provider = await self._providers.find(provider_id, session.project_id) if session is not None else None
        if session is None or provider is None:
            raise _RequestRejected(
                ModelApi.OPENAI, 404, "no_provider", "This model provider is no longer available to this session."
            )
        kind = ModelApi(provider.kind)
        model_request = apis.parse_request(kind, request.method, "/" + rest, query)
        if model_request is None:
            raise _RequestRejected(
                kind, 404, "not_found", f"{request.method[:10]} /{rest[:200]} is not available to agents."
            )
        if any(name == "content-encoding" and value != "identity" for name, value in request.headers):
            raise _RequestRejected(kind, 415, "unsupported", "Send the request uncompressed.")
        call = _Call(kind, provider, session, origin.get_turn_id(), model_request, request)
        return await self._read_request(call) if model_request.counted or request.method == "POST" else call

    async def _read_request(self, call: _Call) -> _Call:
        """Parse the request: set its model, make streams report usage, and reject provider-side tools that the project does not allow."""
        body = call.request.body
        try:
            if len(body) > _PARSE_IN_THREAD_BYTES:
                parsed = await asyncio.to_thread(parse_body, body, call.target, call.kind)
            else:
                parsed = parse_body(body, call.target, call.kind)
        except bounded_json.TooManyValuesError:
            raise _RequestRejected(
                call.kind,
                413,
                "too_large",
                f"The request body has more than {MAX_VALUES:,} JSON values. Start a new session or give the agent fewer tools.",
            ) from None
        except InvalidBodyError as error:
            raise _RequestRejected(call.kind, error.status, error.code, str(error)) from None
        if parsed.hosted_tools and (
            refused := list_refused_tools(
                parsed.hosted_tools, call.provider.name, await self._list_allowed_tools(call.session)
            )
        ):
            log.info("hosted_tool_refused", session=call.session.id, provider=call.provider.id, tools=refused)
            raise _RequestRejected(
                call.kind,
                403,
                "hosted_tool_refused",
                f"This project does not allow these provider-side tools: {', '.join(refused)}. The project's owner can allow "
                "them in its settings (agent.hostedTools).",
            )
        call.request.body = parsed.body
        return replace(call, model=parsed.model, size=len(parsed.body))

    async def _list_allowed_tools(self, session: Session) -> Sequence[str]:
        async with self._database.reading() as reading:
            project = await reading.get(Project, session.project_id) if session.project_id is not None else None
        return ProjectSettings.from_project(project).agent.hosted_tools if project is not None else ()

    # counted calls -----------------------------------------------------------------------------------------------------

    async def _proxy_and_count(self, call: _Call, writer: ResponseWriter) -> None:
        outcome, settled = _Outcome(), False
        refused = await self._check_limits(call, outcome)
        minimum = _apply_minimum(Tokens(), call, 0) if refused is None else Tokens()
        call_id = await self._ledger.open(
            call.provider.id,
            call.session,
            call.turn_id,
            call.model,
            tokens=minimum,
            cost_micros=_get_cost(call, minimum),
            configured=call.model in call.provider.models,
        )

        async def record_usage(tokens: Tokens) -> None:
            with contextlib.suppress(SandyardError):  # it is counted at the end
                await self._ledger.record_usage(call_id, tokens, _get_cost(call, tokens))

        async def settle() -> None:
            nonlocal settled
            settled = True
            await self.tasks.finish(self._settle(call_id, call, outcome))

        outcome.record_usage = record_usage
        try:
            if refused is not None:
                raise refused
            await self._proxy(call, writer, outcome, settle)
        except _RequestRejected:
            await settle()
            raise
        finally:
            if not settled:
                if outcome.sent and not outcome.reported:
                    output = outcome.duration_ms * TOKENS_PER_SECOND // 1000
                    outcome.tokens = _apply_minimum(outcome.tokens, call, min(output, MAX_TOKENS))
                outcome.error = outcome.error or "The agent disconnected before the response was complete."
                self.tasks.spawn(self._settle(call_id, call, outcome))

    async def _check_limits(self, call: _Call, outcome: _Outcome) -> _RequestRejected | None:
        """Return why the call may not be sent, or None."""
        try:
            await self._budgets.check(call.session)
            if call.price is None:
                await self._budgets.check_price(call.session, call.model, call.provider.name)
        except OverBudgetError as error:
            outcome.error = error.message
            if call.turn_id is not None:
                self.tasks.spawn(self._on_over_budget(call.turn_id, error.message))
            return _RequestRejected(call.kind, 402, error.code, error.message)
        return None

    async def _settle(self, call_id: str, call: _Call, outcome: _Outcome) -> None:
        """Record the outcome. Failing to do so does not affect the response."""
        try:
            if outcome.sent and not outcome.reported and call.target.may_continue:
                minimum = max(outcome.tokens.input or 0, await self._ledger.get_largest_input(call.session.id))
                outcome.tokens = replace(outcome.tokens, input=minimum)
            await self._ledger.close(
                call_id,
                status=outcome.status,
                tokens=outcome.tokens,
                cost_micros=_get_cost(call, outcome.tokens),
                error=outcome.error,
                duration_ms=outcome.duration_ms,
            )
            if call.turn_id is None or not outcome.tokens.known:
                return
            if (message := await self._budgets.explain_exceeded(call.session)) is not None:
                self.tasks.spawn(self._on_over_budget(call.turn_id, message))
        except SandyardError as error:
            log.error("model_call_not_counted", call=call_id, exc=error)  # noqa: TRY400

    # proxying ----------------------------------------------------------------------------------------------------------

    async def _proxy(
        self,
        call: _Call,
        writer: ResponseWriter,
        outcome: _Outcome,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Proxy the call. `settle` is called before the agent sees the end, so that its next request finds this one counted."""
        key = await self._reveal_key(call, outcome)
        redactor = Redactor(key)
        try:
            outcome.sent = True
            # in case the agent disconnects before the response starts
            outcome.tokens = _apply_minimum(Tokens(), call, 0)
            response = await self._send_upstream(call, key)
            outcome.tokens = Tokens()
        except (httpx.HTTPError, PrivateAddressError) as error:
            late = isinstance(error, httpx.TimeoutException)
            if not isinstance(error, (httpx.ReadTimeout, httpx.DecodingError)):
                outcome.sent, outcome.tokens = False, Tokens()
            outcome.error = redactor.redact(f"The provider could not be reached: {type(error).__name__}: {error}")
            log.warning("model_provider_unreachable", provider=call.provider.id, reason=type(error).__name__)
            fault = classify_error(call.label, call.provider.base_url, error, late=late)
            self._record_outcome(call, fault, outcome.began, redactor)
            raise _RequestRejected(
                call.kind,
                504 if late else 502,
                "provider_unreachable",
                f"{call.label} {_describe_error(error)}.",
            ) from None
        try:
            complete = await self._stream_response(call, response, writer, outcome, redactor)
        finally:
            await response.aclose()
        if settle is not None:
            await settle()
        if complete:
            await writer.end()

    async def _stream_response(
        self, call: _Call, response: httpx.Response, writer: ResponseWriter, outcome: _Outcome, redactor: Redactor
    ) -> bool:
        """Stream the response to the agent. Returns whether it is complete."""
        outcome.status = response.status_code
        counter = TokenCounter(call.kind, response.headers.get("content-type", ""))
        excerpt = None if response.is_success else _ErrorExcerpt()
        complete, outcome.sent = False, response.is_success
        recorded_at = time.monotonic()
        headers = redactor.redact_headers(response.headers.items())
        chunks = response.aiter_bytes()
        try:
            if excerpt is None:
                self._record_outcome(call, None, outcome.began, redactor)
            else:  # before the agent sees it and gives up
                first = await _read_error(chunks)
                fault = classify_response(
                    call.label,
                    response.status_code,
                    first.decode(errors="replace"),
                    model=call.model,
                    has_key=call.provider.key is not None,
                    redactor=redactor,
                )
                self._record_outcome(call, fault, outcome.began, redactor)
                chunks = _prepend(first, chunks)
            await writer.send_head(
                response.status_code,
                apis.filter_response_headers(headers, decoded="content-encoding" in response.headers),
            )
            async for chunk in chunks:
                await take_turn()
                await counter.feed(chunk)
                clean = redactor.feed(chunk)
                if excerpt is not None:
                    excerpt.add(clean)
                await writer.send_data(clean)
                if (
                    outcome.record_usage is not None
                    and outcome.sent
                    and time.monotonic() - recorded_at > RECORD_USAGE_EVERY_S
                ):
                    recorded_at = time.monotonic()
                    await outcome.record_usage(_apply_minimum(Tokens(), call, counter.minimum))
            await writer.send_data(redactor.flush())
            complete = True
            if excerpt is None:
                self._record_outcome(call, None, outcome.began, redactor)
        except httpx.HTTPError as error:
            outcome.error = redactor.redact(f"The provider's response broke off: {type(error).__name__}: {error}")
            log.warning("model_answer_broken", provider=call.provider.id, reason=type(error).__name__)
        finally:
            outcome.tokens, outcome.reported = counter.get_result(), counter.reported
            if outcome.sent:
                outcome.tokens = _apply_minimum(
                    outcome.tokens, call, 0 if complete and outcome.tokens.known else counter.minimum
                )
        if excerpt is not None:
            outcome.error = outcome.error or excerpt.text
        elif complete and not outcome.reported:
            outcome.error = "The provider did not report the usage, so it is an estimate."
        return complete

    def _record_outcome(self, call: _Call, fault: Fault | None, began: float, redactor: Redactor) -> None:
        """Report the outcome of a request. Requests without cost, such as token counts, are ignored: some providers do not support them."""
        if call.turn_id is None or not call.target.counted:
            return
        if fault is not None:
            fault = replace(fault, message=redactor.redact(fault.message))
        self._on_outcome(call.turn_id, fault, began)
        if fault is not None and fault.final:
            self.tasks.spawn(self._on_refused(call.turn_id, fault))

    async def _send_upstream(self, call: _Call, key: Secret | None) -> httpx.Response:
        client, request = self.get_client(call.provider), call.request
        headers = apis.filter_request_headers(call.kind, request.headers, key)
        if request.body:
            headers.append(("content-length", str(len(request.body))))
        upstream_request = client.build_request(
            request.method,
            apis.build_url(call.provider.base_url, call.target),
            headers=[
                (name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers
            ],
            content=request.stream_body() if request.body else b"",
        )
        response = await client.send(upstream_request, stream=True)
        request.drop_body()  # also if the provider responds before the whole body was sent
        return response

    async def _reveal_key(self, call: _Call, outcome: _Outcome) -> Secret | None:
        try:
            return await self._providers.reveal(call.provider)
        except SandyardError as error:
            outcome.error = error.message
            log.error("model_key_unreadable", provider=call.provider.id, reason=error.message)  # noqa: TRY400
            raise _RequestRejected(
                call.kind,
                500,
                error.code,
                f"The key of {call.provider.name} cannot be decrypted. Ask an administrator.",
            ) from None


def _describe_error(error: Exception) -> str:
    """Return why there is no response, without the provider's address, which the agent does not know."""
    if isinstance(error, httpx.TimeoutException):
        return "did not respond in time"
    if isinstance(error, httpx.DecodingError):
        return "sent a compressed response, which was not requested"
    return "could not be reached"


async def _read_error(chunks: AsyncIterator[bytes]) -> bytes:
    """Return an error response, or as much of it as is read."""
    read = b""
    async for chunk in chunks:
        await take_turn()
        read += chunk
        if len(read) >= _MAX_ERROR_BYTES:
            break
    return read


async def _prepend(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk


class _ErrorExcerpt:
    """The beginning of an error response, for the record."""

    def __init__(self) -> None:
        self._data = b""

    def add(self, chunk: bytes) -> None:
        self._data = (self._data + chunk)[:1000]

    @property
    def text(self) -> str:
        return self._data.decode(errors="replace") or "The provider returned an error without a message."


def _get_cost(call: _Call, tokens: Tokens) -> int | None:
    return compute_cost(call.price, tokens)


def _apply_minimum(tokens: Tokens, call: _Call, output: int) -> Tokens:
    """Return the usage with at least `output` and an estimated input, so that a response that broke off or did not report its usage is
    counted too."""
    input_tokens = tokens.input if tokens.input is not None else call.size // BYTES_PER_TOKEN
    return replace(tokens, input=input_tokens, output=max(tokens.output or 0, output))
