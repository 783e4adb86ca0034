"""Webhooks from the forge. There is no sign-in: a delivery is authenticated by its signature."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Literal

from fastapi import Request

from sandyard.kit.errors import BusyError, SandyardError
from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.guard import closes_unread, streams_body
from sandyard.platform.api.limits import count_rejected_webhook, get_address, limit_webhook_rate
from sandyard.platform.api.problems import TooManyRequestsError
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Model, example
from sandyard.platform.domain.forge import webhooks as domain
from sandyard.platform.domain.forge.deliveries import MAX_BYTES
from sandyard.platform.domain.repositories.errors import TooMuchError

router = api_router("webhooks")
Webhooks = Annotated[domain.Webhooks, inject("webhooks")]
BODY_SECONDS = 15.0
"""How long a body may take to arrive. GitHub sends it at once."""
MAX_UNVERIFIED, MAX_UNVERIFIED_PER_ADDRESS = 64 << 20, 16 << 20
"""How many bytes of unverified bodies may be in memory: together, and from one address."""
_HEADERS = ("X-GitHub-Event", "X-GitHub-Delivery", "X-Hub-Signature-256")


class WebhookResponse(Model):
    model_config = example(status="taken")

    status: Literal["taken", "known", "ignored"]


class SlowWebhookError(SandyardError):
    """The webhook's body did not arrive in time. Deliver it again."""

    code, status = "request_timeout", 408


class UnverifiedBodies:
    """Limits the memory of bodies whose signature is not verified. Each replica counts separately."""

    def __init__(self) -> None:
        self.sizes: Counter[str] = Counter()

    def add(self, address: str, size: int) -> None:
        """Count received bytes. Raises TooManyRequestsError or BusyError if there are too many."""
        if self.sizes[address] + size > MAX_UNVERIFIED_PER_ADDRESS:
            raise TooManyRequestsError(
                "Too many large webhooks from this address are being received. Deliver this one again in a moment.",
                BODY_SECONDS,
            )
        if self.sizes.total() + size > MAX_UNVERIFIED:
            raise BusyError("Too many large webhooks are being received. Deliver this one again in a moment.")
        self.sizes[address] += size

    def remove(self, address: str, size: int) -> None:
        self.sizes[address] -= size
        if not self.sizes[address]:
            del self.sizes[address]


@router.post(
    "/webhooks/github",
    name="webhook.github",
    status_code=202,
    dependencies=[limit_webhook_rate()],
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "parameters": [{"in": "header", "name": name, "schema": {"type": "string"}} for name in _HEADERS],
    },
    responses={
        401: {"description": "The signature is missing or invalid. Compare the webhook's secret with the project's."},
        403: {"description": "No project with this repository has a webhook secret. Set it in the project's settings."},
    },
)
@streams_body
@closes_unread
async def github(request: Request, webhooks: Webhooks) -> WebhookResponse:
    """Receive a GitHub webhook. `known`: already received. `ignored`: not relevant."""
    domain.check_headers(request.headers)
    bodies: UnverifiedBodies = request.app.state.unverified_webhooks
    address, body = get_address(request), bytearray()
    try:
        await _read_body(request, body, bodies, address)
        result = await webhooks.receive(request.headers, bytes(body))
    except domain.WebhookSignatureError:
        count_rejected_webhook(request)
        raise
    finally:
        bodies.remove(address, len(body))
    add_audit_detail(
        request, event=request.headers.get("x-github-event"), delivery=request.headers.get("x-github-delivery")
    )
    return WebhookResponse(status=result.value)


async def _read_body(request: Request, body: bytearray, bodies: UnverifiedBodies, address: str) -> None:
    """Read the request's body into `body`, all of which is counted in `bodies`."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                if len(body) + len(piece) > MAX_BYTES:
                    raise TooMuchError(f"The webhook is too large: the limit is {MAX_BYTES >> 20} MiB.")
                bodies.add(address, len(piece))
                body += piece
    except TimeoutError:
        raise SlowWebhookError(
            f"The webhook's body did not arrive within {BODY_SECONDS:.0f} s. Deliver it again."
        ) from None
