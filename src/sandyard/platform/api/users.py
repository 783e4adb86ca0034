"""Users and their roles, for administrators."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from pydantic import Field, SecretStr, StringConstraints

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import AdminCaller, Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.domain.users import service
from sandyard.platform.domain.users.model import Role
from sandyard.platform.domain.users.passwords import MAX_LENGTH, MIN_LENGTH

router = api_router("users")
Users = Annotated[service.Users, inject("users")]
UserId = Annotated[str, id_in_path("user", "usr_0mh3k7a1x2abcdefghij")]
UserName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")]
Password = Annotated[SecretStr, Field(min_length=MIN_LENGTH, max_length=MAX_LENGTH)]
_EXAMPLE: dict[str, Any] = {
    "id": "usr_0mh3k7a1x2abcdefghij",
    "name": "maria",
    "role": "member",
    "hasPassword": True,
    "createdAt": "2026-01-31T10:00:00.000Z",
    "disabledAt": None,
}


class UserView(Model):
    model_config = example(**_EXAMPLE)

    id: str
    name: str
    role: Role
    has_password: bool = Field(description="Whether the user can sign in with name and password.")
    created_at: Instant
    disabled_at: Instant | None


class NewUser(Input):
    model_config = example(name="maria", role="member", password="correct horse battery")  # noqa: S106

    name: UserName
    role: Role = "member"
    password: Password | None = Field(default=None, description="Without a password, the user can only use API tokens.")


class UserChange(Input):
    """Fields left out are not changed."""

    model_config = example(role="admin")

    name: UserName | None = None
    role: Role | None = None
    disabled: bool | None = None
    password: Password | None = Field(
        default=None, description="Null removes the password. A new password signs the user out everywhere."
    )


@router.get("/users", name="user.list")
async def list_users(caller: AdminCaller, page: Paging, users: Users) -> Page[UserView]:
    return Page[UserView].from_listing(await users.list(caller, page), UserView.model_validate)


@router.post("/users", name="user.create", status_code=201, dependencies=[limit_rate("create")])
async def create_user(caller: AdminCaller, body: NewUser, request: Request, users: Users) -> UserView:
    password = body.password.get_secret_value() if body.password else None
    user = await users.create(caller, body.name, body.role, password)
    add_audit_detail(request, target=user.id)
    return UserView.model_validate(user)


@router.get("/users/{user_id}", name="user.get")
async def get_user(caller: Caller, user_id: UserId, users: Users) -> UserView:
    """Get a user. Users can see themselves; administrators can see everyone."""
    return UserView.model_validate(await users.get(caller, user_id))


@router.patch("/users/{user_id}", name="user.update", dependencies=[limit_rate("execute")])
async def update_user(
    caller: AdminCaller, user_id: UserId, body: UserChange, request: Request, users: Users
) -> UserView:
    """Update a user. Disabling them signs them out and revokes their tokens permanently. The last administrator cannot be removed."""
    given = body.model_dump(exclude_unset=True, exclude={"password"})
    if "password" in body.model_fields_set:
        given["password"] = body.password.get_secret_value() if body.password else None
    add_audit_detail(request, changed=sorted(body.model_fields_set))
    return UserView.model_validate(await users.update(caller, user_id, **given))


@router.delete("/users/{user_id}", name="user.delete", status_code=204)
async def delete_user(caller: AdminCaller, user_id: UserId, users: Users) -> None:
    """Disable a user and revoke their tokens. What they created is kept. Idempotent."""
    await users.delete(caller, user_id)
