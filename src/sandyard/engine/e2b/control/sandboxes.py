"""Create, list and get sandboxes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import unquote_plus

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from sandyard.engine.e2b.control import errors, network, views
from sandyard.engine.e2b.control.context import Context, parse_page_limit
from sandyard.engine.e2b.control.wire import NewSandbox
from sandyard.engine.e2b.dataplane.asgi import App, Receive, Scope, Send, get_header, read_body
from sandyard.engine.e2b.dataplane.target import strip_client_id
from sandyard.engine.sandboxes.model import CreateSandbox, OnTimeout, Sandbox, SandboxQuery, State
from sandyard.kit.errors import InvalidInputError, SandyardError

IDEMPOTENCY_KEY = re.compile(r"[a-z0-9-]{1,255}")
V1_TIMEOUT, V2_TIMEOUT = 15, 300
V1_PAGE = 10_000
"""How many sandboxes are looked up at a time for a response with all of them."""


def make_router(context: Context) -> APIRouter:
    router = APIRouter()
    service = context.sandboxes

    @router.get("/sandboxes")
    async def list_v1(metadata: str | None = None) -> JSONResponse:
        query = SandboxQuery(parse_metadata(metadata), frozenset((State.RUNNING,)), limit=V1_PAGE)
        return JSONResponse([views.render_listed(sandbox) for sandbox in _iterate_all(context, query)])

    @router.get("/v2/sandboxes")
    async def list_v2(
        *,
        metadata: str | None = None,
        state: Annotated[list[str] | None, Query()] = None,
        template: str | None = None,
        startedAfter: str | None = None,  # noqa: N803 - the wire's own name
        order: str | None = None,
        limit: int | None = None,
        nextToken: str | None = None,  # noqa: N803
    ) -> JSONResponse:
        if order not in (None, "asc", "desc"):
            raise InvalidInputError("order is not valid: use asc or desc.")
        query = SandboxQuery(
            metadata=parse_metadata(metadata),
            states=parse_states(state),
            template=template or None,
            started_after=parse_time("startedAfter", startedAfter),
            oldest_first=order == "asc",
            limit=parse_page_limit(limit),
            cursor=nextToken or None,
        )
        page = service.list(query)
        headers = {"X-Next-Token": page.next_cursor} if page.next_cursor else {}
        if State.RUNNING in query.states:
            headers["X-Total-Running"] = str(service.count(replace(query, states=frozenset((State.RUNNING,)))))
        return JSONResponse([views.render_listed(sandbox) for sandbox in page.items], headers=headers)

    @router.get("/sandboxes/{sandbox_id}")
    async def get(sandbox_id: str) -> JSONResponse:
        return JSONResponse(views.render_detail(service.get(strip_client_id(sandbox_id)), context.domain))

    return router


def make_create_apps(context: Context) -> dict[tuple[str, str], App]:
    """Return the handlers for creation, by method and path. They bypass the framework, whose layers take longer than
    claiming a pooled sandbox. Errors have the same format as elsewhere."""

    def make_create_app(default_timeout: int, secure: bool | None) -> App:
        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                body = NewSandbox.model_validate_json(await read_body(receive))
                request = parse_new_sandbox(body, default_timeout, bool(body.secure) if secure is None else secure)
                key = get_header(scope["headers"], b"idempotency-key")
                if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
                    raise InvalidInputError("Idempotency-Key is not valid: use 1 to 255 of a-z, 0-9 and '-'.")
                owner = scope["state"]["key"].id
                mounts = context.volumes.resolve([(mount.name, mount.path) for mount in body.volumeMounts or ()])
                request = replace(request, idempotency_key=key, owner=owner, volume_mounts=mounts)
                with context.volumes.hold(mounts):
                    sandbox = await context.sandboxes.create(request)
                response = JSONResponse(views.render_created(sandbox, context.domain), 201)
            except ValidationError as error:
                response = errors.make_validation_response(error.errors())
            except SandyardError as error:
                response = errors.make_error_response(error.status, error.message)
            await response(scope, receive, send)

        return handle

    return {
        ("POST", "/sandboxes"): make_create_app(V1_TIMEOUT, None),
        ("POST", "/v2/sandboxes"): make_create_app(V2_TIMEOUT, True),
    }


def parse_new_sandbox(body: NewSandbox, default_timeout: int, secure: bool) -> CreateSandbox:
    """Parse a create request. Raises InvalidInputError, with E2B's messages where clients look for them."""
    if body.timeout == 0:
        raise InvalidInputError("Timeout must be greater than 0")
    if body.iam and body.iam.get("tokens"):
        raise InvalidInputError("Workload identity is not supported by this engine. Leave out iam.")
    for name, value in (body.envVars or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidInputError(
                f"envVars: {name[:100]!r} is not valid: names must not contain '=', and names and values must not contain NUL."
            )
    public = body.network is None or body.network.allowPublicTraffic is not False
    if not public and not secure:
        raise InvalidInputError(
            "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag."
        )
    auto_resume = body.autoResume is not None and body.autoResume.is_enabled
    keep_memory = body.autoPauseMemory is not False
    if auto_resume and body.autoPause and not keep_memory:
        raise InvalidInputError(
            "autoResume cannot be combined with autoPauseMemory=false, because traffic cannot wake a sandbox that would have to reboot."
        )
    return CreateSandbox(
        template=body.templateID.strip(),
        timeout_s=body.timeout or default_timeout,
        metadata=body.metadata or {},
        env=body.envVars or {},
        network=network.make_network(body.network, body.allow_internet_access),
        secure=secure,
        public_traffic=public,
        on_timeout=OnTimeout.PAUSE if body.autoPause else OnTimeout.KILL,
        auto_pause_memory=keep_memory,
        auto_resume=auto_resume,
        extra={"mcp": body.mcp} if body.mcp else {},
    )


def parse_metadata(text: str | None) -> dict[str, str]:
    """Parse `key=value&…`, with keys and values URL-encoded once more than the URL itself, as clients have always done."""
    if not text:
        return {}
    metadata = {}
    for pair in unquote_plus(text).split("&"):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInputError("metadata is not valid: use key=value pairs, joined by '&' and URL-encoded.")
        metadata[unquote_plus(key)] = unquote_plus(value)
    return metadata


def parse_states(values: list[str] | None) -> frozenset[State]:
    """Parse `state=running,paused` as well as `state=running&state=paused`."""
    names = [name for value in values or [] for name in value.split(",") if name]
    try:
        return frozenset(State(name) for name in names) or frozenset(State)
    except ValueError:
        raise InvalidInputError("state is not valid: use running, paused or both.") from None


def parse_time(name: str, text: str | None) -> float | None:
    """Parse RFC 3339. A space instead of the '+' of an offset is accepted, because not every client encodes it."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text.strip().replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise InvalidInputError(f"{name} is not valid: use a time like 2026-01-31T10:00:00Z.") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _iterate_all(context: Context, query: SandboxQuery) -> Iterator[Sandbox]:
    while True:
        page = context.sandboxes.list(query)
        yield from page.items
        if page.next_cursor is None:
            return
        query = replace(query, cursor=page.next_cursor)
