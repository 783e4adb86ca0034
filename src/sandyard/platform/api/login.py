"""Sign in and out, get the current user, and create tickets for streams."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import Field, SecretStr, model_validator

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import COOKIE, KEY_HEADER, Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.guard import body_limit
from sandyard.platform.api.limits import count_login, limit_login_rate
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example
from sandyard.platform.api.users import Password, UserView
from sandyard.platform.domain.events.feed import Feed
from sandyard.platform.domain.users import service
from sandyard.platform.settings import PlatformSettings

router = api_router("login")
BODY_LIMIT, BODY_VALUES = 16 * 1024, 20
"""Body limit of a sign-in, which needs no authentication: a name and a password, even if every character is escaped."""
Events = Annotated[Feed, inject("events")]
Users = Annotated[service.Users, inject("users")]
Settings = Annotated[PlatformSettings, inject("settings")]


class LoginRequest(Input):
    model_config = example(name="admin", password="correct horse battery")  # noqa: S106

    name: str | None = Field(default=None, max_length=200)
    password: SecretStr | None = Field(default=None, max_length=1000)
    token: SecretStr | None = Field(
        default=None, max_length=200, description="An API token, instead of a name and password."
    )

    @model_validator(mode="after")
    def _check_credentials(self) -> LoginRequest:
        has_password = self.name is not None and self.password is not None
        if (self.token is None) != has_password or (self.token is not None and (self.name or self.password)):
            raise ValueError("Set either name and password, or token")
        return self


class LoginResponse(Model):
    user: UserView
    key: str = Field(
        examples=["k3x9…"],
        description=f"The cookie is accepted only with this key in the header `{KEY_HEADER}` of every request. It is shown only once.",
    )


class Me(Model):
    user: UserView
    means: str = Field(
        examples=["token:tok_0mh3k7a1x2abcdefghij"],
        description="How the request was authenticated: token, cookie or ticket.",
    )
    has_password: bool = Field(description="Whether the user can sign in with name and password.")
    default_network: Literal["none", "listed", "all"] = Field(
        description="Network access of sandboxes whose project does not set it."
    )
    last_event: int = Field(
        examples=[4711],
        description="Use it as `Last-Event-ID` to stream everything that happens after this response.",
    )


class PasswordChange(Input):
    model_config = example(currentPassword="correct horse battery", password="another horse battery")  # noqa: S106

    current_password: SecretStr | None = Field(
        default=None, max_length=1000, description="Not needed if no password is set."
    )
    password: Password


class TicketView(Model):
    model_config = example(ticket="n4x0…", expiresAt="2026-01-31T10:00:30.000Z")

    ticket: str
    expires_at: Instant


@router.post(
    "/login",
    name="login.create",
    dependencies=[limit_login_rate()],
    responses={401: {"description": "Wrong name, password or token."}},
)
@body_limit(size=BODY_LIMIT, values=BODY_VALUES)
async def login(body: LoginRequest, request: Request, response: Response, users: Users) -> LoginResponse:
    """Sign in and set a cookie, which is accepted only with the key of this response."""
    add_audit_detail(request, target=body.name)
    count_login(request, body.name or "")
    issued = await users.login(
        name=body.name,
        password=body.password.get_secret_value() if body.password else None,
        token=body.token.get_secret_value() if body.token else None,
    )
    cookie, key = issued.cookie.reveal(), issued.key.reveal()
    principal = await users.authenticate_cookie([cookie], key)
    assert principal is not None, "a new login is valid"
    request.state.principal = principal
    settings = request.app.state.services.settings
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=settings.login_days * 86400,
        path="/",
        secure=(settings.public_url or "").startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    return LoginResponse(user=UserView.model_validate(await users.get(principal, principal.user_id)), key=key)


@router.post("/logout", name="login.delete", status_code=204)
async def logout(caller: Caller, response: Response, users: Users) -> None:
    """Sign out: end the login that the cookie belongs to. With a token, does nothing."""
    await users.logout(caller)
    response.delete_cookie(COOKIE, path="/")


@router.get("/me", name="login.get")
async def get_me(caller: Caller, users: Users, events: Events, settings: Settings) -> Me:
    last = events.last
    user = await users.get(caller, caller.user_id)
    return Me(
        user=UserView.model_validate(user),
        means=caller.means,
        has_password=user.has_password,
        default_network=settings.network,
        last_event=last,
    )


@router.put("/me/password", name="login.password", status_code=204, dependencies=[limit_login_rate()])
@body_limit(size=BODY_LIMIT, values=BODY_VALUES)
async def change_password(caller: Caller, body: PasswordChange, request: Request, users: Users) -> None:
    """Change your own password. Signs you out everywhere else; API tokens stay valid."""
    count_login(request, caller.name)
    current = body.current_password.get_secret_value() if body.current_password else None
    await users.change_own_password(caller, current, body.password.get_secret_value())


@router.post("/tickets", name="ticket.create", status_code=201)
async def create_ticket(caller: Caller, users: Users) -> TicketView:
    """Create a ticket, valid once and for 30 seconds, as `?ticket=` of an event stream, a terminal or a download."""
    issued = await users.create_ticket(caller)
    assert issued.expires_at is not None
    return TicketView(ticket=issued.value.reveal(), expires_at=issued.expires_at)
