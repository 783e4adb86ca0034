"""The port at which machines join as hosts, renew their certificates and leave. Always TLS, with a certificate of the
engine's authority for hosts. Nothing else of the engine is served here, and no API key is accepted."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from sandyard.engine.e2b.control import errors
from sandyard.engine.e2b.dataplane.asgi import App, Message, Receive, Scope, Send, discard_body
from sandyard.engine.hosts.administration import HostAdministration
from sandyard.engine.hosts.directory import HostDetails
from sandyard.engine.hosts.enrollment import Enrollment, JoinRequest, JoinResponse
from sandyard.engine.hosts.machines import Claim
from sandyard.engine.hosts.rate_limit import RateLimit
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.connections import get_address_group
from sandyard.kit.errors import FullError
from sandyard.kit.secret import Secret

BODY_LIMIT = 16 * 1024
BURST, INTERVAL_S = 20, 3.0
"""A client, or an IPv6 network (/64), may make this many requests at once, and one more at this interval."""
Pem = Annotated[str, Field(max_length=8000)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class JoinBody(_Body):
    token: str = Field(max_length=100)
    secret: str = Field(max_length=200, repr=False)
    certificateRequest: Pem  # noqa: N815 - names on the wire
    name: str = Field(max_length=100)
    address: str | None = Field(default=None, max_length=300)  # None: the one that the request comes from
    port: int
    labels: Annotated[dict[str, str], Field(max_length=100)] = {}


class ClaimBody(_Body):
    source: str = Field(max_length=40)
    credential: str = Field(max_length=8000, repr=False)
    hostID: str | None = Field(default=None, max_length=100)  # noqa: N815
    problem: str | None = Field(default=None, max_length=2000)


class RenewBody(_Body):
    certificateRequest: Pem  # noqa: N815


class LeaveBody(RenewBody):
    signature: str = Field(max_length=1000)
    force: bool = False


def build_join_app(enrollment: Enrollment, hosts: HostAdministration, clock: Clock | None = None) -> App:
    """Return the ASGI application of the join port."""
    app = FastAPI(title="Sandyard hosts", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    errors.install(app)

    @app.get("/authority")
    async def authority() -> JSONResponse:
        """Return the certificate of the authority, which a joining host compares with its token."""
        return JSONResponse({"certificate": enrollment.authority_pem.decode()})

    @app.post("/join")
    async def join(request: Request, body: JoinBody) -> JSONResponse:
        address = body.address if body.address is not None else _get_client(request.scope)
        details = HostDetails(body.name, address, body.port, body.labels)
        response = enrollment.join(JoinRequest(body.token, body.secret, body.certificateRequest, details))
        await hosts.flush()
        return JSONResponse(_render(response), 201)

    @app.post("/claim")
    async def claim(body: ClaimBody) -> JSONResponse:
        """Return the join token of a machine that has a credential of its source."""
        offer = await hosts.claim_token(body.source, Claim(Secret(body.credential), body.hostID, body.problem))
        token = offer.token.encode().reveal() if offer.token is not None else None
        return JSONResponse({"name": offer.name, "address": offer.address, "token": token})

    @app.post("/renew")
    async def renew(body: RenewBody) -> JSONResponse:
        return JSONResponse(_render(enrollment.renew(body.certificateRequest)), 201)

    @app.post("/leave")
    async def leave(body: LeaveBody) -> JSONResponse:
        record = await hosts.forget(enrollment.check_leave(body.certificateRequest, body.signature), force=body.force)
        return JSONResponse({"id": record.id, "name": record.name})

    return _Guard(app, RateLimit(clock or SystemClock(), burst=BURST, interval_s=INTERVAL_S))


class _Guard:
    """Limits requests by client, and their bodies."""

    def __init__(self, app: App, limit: RateLimit) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._limit.take(get_address_group(_get_client(scope)))
        except FullError as error:
            await discard_body(receive)
            await _send_error(send, error.status, error.message)
            return
        size = 0
        is_too_large = False

        async def receive_limited() -> Message:
            nonlocal size, is_too_large
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_LIMIT:
                is_too_large = True
                return {"type": "http.request", "body": b"", "more_body": False}
            return message

        async def send_unless_too_large(message: Message) -> None:
            if not is_too_large:
                await send(message)

        await self._app(scope, receive_limited, send_unless_too_large)
        if is_too_large:
            await _send_error(send, 413, f"The request's body is too large: the limit is {BODY_LIMIT // 1024} KiB.")


def _get_client(scope: Scope) -> str:
    client = scope.get("client")
    address = str(client[0]) if client else ""
    return address.removeprefix("::ffff:")


def _render(response: JoinResponse) -> dict[str, Any]:
    return {"id": response.host_id, "certificate": response.certificate.decode(), "expiresAt": response.expires_at}


async def _send_error(send: Send, status: int, message: str) -> None:
    body = json.dumps({"code": status, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
