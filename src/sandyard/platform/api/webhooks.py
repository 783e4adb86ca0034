"""Webhooks from the forge. There is no sign-in: a delivery is authenticated by its signature."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Request

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.guard import streams_body
from sandyard.platform.api.limits import count_rejected_webhook, webhook_limited
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Model, example
from sandyard.platform.domain.forge import webhooks as domain
from sandyard.platform.domain.forge.deliveries import MAX_BYTES
from sandyard.platform.domain.repositories.errors import TooMuchError

router = api_router("webhooks")
Webhooks = Annotated[domain.Webhooks, inject("webhooks")]
_HEADERS = ("X-GitHub-Event", "X-GitHub-Delivery", "X-Hub-Signature-256")


class Taken(Model):
    model_config = example(status="taken")

    status: Literal["taken", "known", "ignored"]


@router.post(
    "/webhooks/github",
    name="webhook.github",
    status_code=202,
    dependencies=[webhook_limited()],
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "parameters": [{"in": "header", "name": name, "schema": {"type": "string"}} for name in _HEADERS],
    },
    responses={
        401: {"description": "The signature is missing or invalid."},
        403: {"description": "No project with this repository has a webhook secret."},
    },
)
@streams_body
async def github(request: Request, webhooks: Webhooks) -> Taken:
    """Receive a GitHub webhook. `known`: already received. `ignored`: not relevant."""
    body = await _body(request)
    try:
        result = await webhooks.receive(request.headers, body)
    except domain.WebhookUnsignedError:
        raise
    except domain.WebhookSignatureError:
        count_rejected_webhook(request)
        raise
    add_audit_detail(
        request, event=request.headers.get("x-github-event"), delivery=request.headers.get("x-github-delivery")
    )
    return Taken(status=result.value)


async def _body(request: Request) -> bytes:
    """Read the body, keeping at most one piece more than the limit."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BYTES:
            raise TooMuchError(f"The webhook is too large: the limit is {MAX_BYTES >> 20} MiB.")
    return bytes(body)
