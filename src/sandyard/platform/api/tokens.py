"""The user's own API tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import Field, StringConstraints

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, Moment, example, id_in_path
from sandyard.platform.domain.users import service

router = api_router("tokens")
Users = Annotated[service.Users, inject("users")]
TokenId = Annotated[str, id_in_path("token", "tok_0mh3k7a1x2abcdefghij")]


class TokenView(Model):
    model_config = example(
        id="tok_0mh3k7a1x2abcdefghij",
        name="laptop",
        hint="sy_k3f9x",
        createdAt="2026-01-31T10:00:00.000Z",
        lastUsedAt=None,
        expiresAt=None,
    )

    id: str
    name: str
    hint: str = Field(description="The beginning of the token, to tell tokens apart.")
    created_at: Instant
    last_used_at: Instant | None = Field(description="Accurate to the minute.")
    expires_at: Instant | None


class NewToken(Input):
    model_config = example(name="laptop", expiresAt=None)

    name: Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
    expires_at: Moment | None = Field(
        default=None,
        description="Null means the token never expires, or expires together with the token used to create it. "
        "A later time than that is rejected.",
    )


class CreatedToken(TokenView):
    model_config = example(
        id="tok_0mh3k7a1x2abcdefghij",
        name="laptop",
        hint="sy_k3f9x",
        createdAt="2026-01-31T10:00:00.000Z",
        lastUsedAt=None,
        expiresAt=None,
        value="sy_k3f9x…",
    )

    value: str = Field(description="The token. It is shown only once.")


@router.get("/tokens", name="token.list")
async def list_tokens(caller: Caller, page: Paging, users: Users) -> Page[TokenView]:
    """List your API tokens, without revoked ones."""
    return Page[TokenView].from_listing(await users.list_tokens(caller, page), TokenView.model_validate)


@router.post("/tokens", name="token.create", status_code=201, dependencies=[limit_rate("create")])
async def create_token(caller: Caller, body: NewToken, request: Request, users: Users) -> CreatedToken:
    issued = await users.create_token(caller, body.name, body.expires_at)
    add_audit_detail(request, target=issued.id)
    token = TokenView.model_validate(await users.get_token(caller, issued.id))
    return CreatedToken(**token.model_dump(), value=issued.value.reveal())


@router.delete("/tokens/{token_id}", name="token.delete", status_code=204)
async def revoke_token(caller: Caller, token_id: TokenId, users: Users) -> None:
    """Revoke a token. It stops working immediately."""
    await users.revoke_token(caller, token_id)
