from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.clock import get_time
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NotFoundError, UnauthenticatedError
from sandyard.platform.db.models import ApiToken, Login, Ticket, User
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.users import authentication
from sandyard.platform.domain.users.authentication import is_still_valid
from sandyard.platform.domain.users.model import (
    IssuedLogin,
    LastAdminError,
    NameTakenError,
    Principal,
    WrongLoginError,
)
from sandyard.platform.domain.users.passwords import check_password, hash_password
from tests.unit.platform.world import PASSWORD, ROOT, World


async def authenticate(world: World, login: IssuedLogin) -> Principal | None:
    return await world.users.authenticate_cookie([login.cookie.reveal()], login.key.reveal())


async def test_bootstrap_creates_one_admin_once(world: World) -> None:
    made = await asyncio.gather(*(world.users.bootstrap() for _ in range(5)))
    issued = [candidate for candidate in made if candidate is not None]
    assert len(issued) == 1 and re.fullmatch(r"sy_[a-z0-9]{40}", issued[0].value.reveal())
    found = await world.users.authenticate_token(issued[0].value.reveal())
    assert found is not None and found.is_admin and found.name == "admin" and found.means == f"token:{issued[0].id}"
    assert await world.users.bootstrap() is None


async def test_secrets_are_not_stored_or_emitted(world: World) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    login = await world.users.login(name="maria", password=PASSWORD)
    ticket = (await world.users.create_ticket(maria.principal)).value.reveal()
    async with world.database.reading() as session:
        tables = [str(table) for table in ("users", "api_tokens", "logins", "tickets", "events")]
        stored = repr([(await session.execute(text(f"SELECT * FROM {table}"))).all() for table in tables])
    for secret in (PASSWORD, maria.token, login.cookie.reveal(), login.key.reveal(), ticket):
        assert secret not in stored
    kinds = [event.kind for event in await world.list_events()]
    assert kinds == ["user.created", "token.created"]


async def test_members_cannot_manage_users(world: World) -> None:
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    for refused in (
        world.users.list(maria.principal, PageRequest()),
        world.users.create(maria.principal, "eve", "admin"),
        world.users.get(maria.principal, otto.principal.user_id),
        world.users.update(maria.principal, maria.principal.user_id, role="admin"),
        world.users.delete(maria.principal, otto.principal.user_id),
    ):
        with pytest.raises(ForbiddenError):
            await refused
    assert (await world.users.get(maria.principal, maria.principal.user_id)).name == "maria"


async def test_rejects_duplicate_names_and_unknown_roles(world: World) -> None:
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    with pytest.raises(NameTakenError):
        await world.users.create(ROOT, "maria", "member")
    with pytest.raises(NameTakenError):
        await world.users.update(ROOT, otto.principal.user_id, name="maria")
    with pytest.raises(InvalidInputError):
        await world.users.create(ROOT, "x", "owner")
    with pytest.raises(NotFoundError):
        await world.users.update(ROOT, "usr_nobody", name="x")
    assert (await world.users.get(ROOT, maria.principal.user_id)).name == "maria"


async def test_keeps_last_admin(world: World) -> None:
    first, second = await world.create_person("first", "admin"), await world.create_person("second", "admin")
    await world.users.delete(ROOT, second.principal.user_id)
    for change in ({"disabled": True}, {"role": "member"}):
        with pytest.raises(LastAdminError):
            await world.users.update(ROOT, first.principal.user_id, **change)
    await world.users.update(ROOT, first.principal.user_id, name="chief", disabled=False, role="admin")
    await world.users.update(ROOT, second.principal.user_id, disabled=False)
    outcomes = await asyncio.gather(
        world.users.update(ROOT, first.principal.user_id, role="member"),
        world.users.update(ROOT, second.principal.user_id, disabled=True),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LastAdminError", "User"]


async def test_disabled_user_loses_access_at_once(world: World) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    login = await world.users.login(token=maria.token)
    ticket = (await world.users.create_ticket(maria.principal)).value.reveal()
    assert await world.users.authenticate_token(maria.token) and await authenticate(world, login)
    await world.users.update(ROOT, maria.principal.user_id, disabled=True)
    assert await world.users.authenticate_token(maria.token) is None
    assert await authenticate(world, login) is None
    assert await world.users.authenticate_ticket(ticket) is None
    with pytest.raises(WrongLoginError):
        await world.users.login(name="maria", password=PASSWORD)
    await world.users.update(ROOT, maria.principal.user_id, disabled=False)
    assert await world.users.authenticate_token(maria.token) is None, "a revoked token stays revoked"
    assert await authenticate(world, login) is None, "an ended login stays ended"
    assert (await world.users.list_tokens(maria.principal, PageRequest())).items == []
    assert await world.users.login(name="maria", password=PASSWORD)


async def test_disabled_user_creates_no_token(world: World) -> None:
    maria = await world.create_person("maria")
    await world.users.update(ROOT, maria.principal.user_id, disabled=True)
    with pytest.raises(UnauthenticatedError):
        await world.users.create_token(maria.principal, "late")


@pytest.mark.parametrize("by_cookie", [False, True])
async def test_expiring_token_creates_no_token_that_outlives_it(world: World, by_cookie: bool) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    expires = get_time(world.clock) + timedelta(hours=1)
    value = (await world.users.create_token(maria.principal, "short", expires)).value.reveal()
    if by_cookie:
        login = await world.users.login(token=value)
        caller = await authenticate(world, login)
    else:
        caller = await world.users.authenticate_token(value)
    assert caller is not None
    earlier = expires - timedelta(minutes=1)
    for wanted, granted in ((None, expires), (expires, expires), (earlier, earlier)):
        made = await world.users.create_token(caller, "next", wanted)
        assert made.expires_at == (await world.users.get_token(caller, made.id)).expires_at == granted
    with pytest.raises(InvalidInputError, match="expiresAt must not be later than"):
        await world.users.create_token(caller, "next", expires + timedelta(seconds=1))


async def test_login_with_password_creates_token_that_never_expires(world: World) -> None:
    await world.create_person("maria", password=PASSWORD)
    login = await world.users.login(name="maria", password=PASSWORD)
    caller = await authenticate(world, login)
    assert caller is not None
    assert (await world.users.create_token(caller, "laptop")).expires_at is None


async def test_login_ends_with_the_token_it_was_made_with(world: World) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    kept = await world.users.login(name="maria", password=PASSWORD)
    expires = get_time(world.clock) + timedelta(hours=1)
    tokens = [await world.users.create_token(maria.principal, name, expires) for name in ("revoked", "expired")]
    logins = [await world.users.login(token=token.value.reveal()) for token in tokens]
    assert [login.expires_at for login in logins] == [expires, expires]
    revoked, expired = logins
    assert await authenticate(world, revoked) and await authenticate(world, expired)
    await world.users.revoke_token(maria.principal, tokens[0].id)
    assert await authenticate(world, revoked) is None
    assert await authenticate(world, expired)
    await world.clock.advance(3601)
    assert await authenticate(world, expired) is None
    assert await authenticate(world, kept)


async def test_changing_password_ends_logins(world: World) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    login = await world.users.login(name="maria", password=PASSWORD)
    await world.users.update(ROOT, maria.principal.user_id, password="another long one")
    assert await authenticate(world, login) is None
    with pytest.raises(WrongLoginError):
        await world.users.login(name="maria", password=PASSWORD)
    await world.users.login(name="maria", password="another long one")
    await world.users.update(ROOT, maria.principal.user_id, password=None)
    with pytest.raises(WrongLoginError):
        await world.users.login(name="maria", password="another long one")


async def test_password_changes_during_login(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    here, looking, changed = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def check(password: str, hashed: str | None) -> bool:
        here.call_soon_threadsafe(looking.set)
        changed.wait(60)
        return check_password(password, hashed)

    monkeypatch.setattr(authentication, "check_password", check)
    signing_in = asyncio.create_task(world.users.login(name="maria", password=PASSWORD))
    await looking.wait()
    await world.users.update(ROOT, maria.principal.user_id, password="another one, quite long")
    changed.set()
    with pytest.raises(WrongLoginError):
        await signing_in


async def test_does_not_cache_revoked_credentials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    login = await world.users.login(name="maria", password=PASSWORD)
    caller = Principal(maria.principal.user_id, "maria", "member", f"cookie:{login.id}")
    reading = world.database.reading
    token_id = maria.principal.means.partition(":")[2]
    for look, end in (
        (lambda: authenticate(world, login), lambda: world.users.logout(caller)),
        (
            lambda: world.users.authenticate_token(maria.token),
            lambda: world.users.revoke_token(maria.principal, token_id),
        ),
    ):

        @contextlib.asynccontextmanager
        async def overtaken(end: Callable[[], Awaitable[None]] = end) -> AsyncIterator[AsyncSession]:
            monkeypatch.setattr(world.database, "reading", reading)
            async with reading() as session:
                yield session
            await end()

        monkeypatch.setattr(world.database, "reading", overtaken)
        assert await look() is not None, "the lookup came first"
        assert await look() is None


async def test_tokens_expire_and_are_revoked(world: World) -> None:
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    until = get_time(world.clock) + timedelta(hours=1)
    short = await world.users.create_token(maria.principal, "short", until)
    with pytest.raises(InvalidInputError):
        await world.users.create_token(maria.principal, "past", get_time(world.clock))
    assert await world.users.authenticate_token(short.value.reveal())
    await world.clock.advance(3600)
    assert await world.users.authenticate_token(short.value.reveal()) is None
    own = maria.principal.means.removeprefix("token:")
    with pytest.raises(NotFoundError):
        await world.users.revoke_token(otto.principal, own)
    await world.users.revoke_token(maria.principal, own)
    assert await world.users.authenticate_token(maria.token) is None
    with pytest.raises(NotFoundError):
        await world.users.revoke_token(maria.principal, own)
    listed = await world.users.list_tokens(maria.principal, PageRequest())
    assert [token.name for token in listed.items] == ["short"]


@pytest.mark.parametrize("value", ["", "sy_", "sy_" + "a" * 39, "sy_" + "A" * 40, "x" * 10_000, "sy_\udc80", "sy_\0"])
async def test_rejects_invalid_tokens(world: World, value: str) -> None:
    assert await world.users.authenticate_token(value) is None
    assert await world.users.authenticate_cookie([value], value) is None
    assert await world.users.authenticate_ticket(value) is None


async def test_last_use_is_written_once_a_minute(world: World) -> None:
    maria = await world.create_person("maria")

    async def last_used() -> object:
        await world.users.tasks.wait(10)
        async with world.database.reading() as session:
            return await session.scalar(select(ApiToken.last_used_at))

    await asyncio.gather(*(world.users.authenticate_token(maria.token) for _ in range(10)))
    first = await last_used()
    assert first == get_time(world.clock)
    await world.clock.advance(59)
    await world.users.authenticate_token(maria.token)
    assert await last_used() == first
    await world.clock.advance(1)
    await world.users.authenticate_token(maria.token)
    assert await last_used() == get_time(world.clock)


async def test_tickets_are_single_use_and_expire(world: World) -> None:
    maria = await world.create_person("maria")
    ticket = (await world.users.create_ticket(maria.principal)).value.reveal()
    found = await asyncio.gather(*(world.users.authenticate_ticket(ticket) for _ in range(5)))
    assert sorted(item is not None for item in found) == [False] * 4 + [True]
    late = (await world.users.create_ticket(maria.principal)).value.reveal()
    await world.clock.advance(30)
    assert await world.users.authenticate_ticket(late) is None


async def test_expired_rows_are_swept(world: World) -> None:
    maria = await world.create_person("maria")
    await world.users.create_ticket(maria.principal)
    login = await world.users.login(token=maria.token)
    await world.clock.advance(31)
    assert await world.users.sweep() == 1
    assert await authenticate(world, login)
    await world.clock.advance(world.settings.login_days * 86400)
    assert await authenticate(world, login) is None
    assert await world.users.sweep() == 1
    async with world.database.reading() as session:
        for table in (Login, Ticket):
            assert await session.scalar(select(func.count()).select_from(table)) == 0


async def test_logout_ends_one_login(world: World) -> None:
    maria = await world.create_person("maria")
    first, second = [await world.users.login(token=maria.token) for _ in range(2)]
    caller = await authenticate(world, first)
    assert caller is not None
    await world.users.logout(caller)
    await world.users.logout(caller)
    assert await authenticate(world, first) is None and await authenticate(world, second)


async def test_a_login_needs_both_its_cookie_and_its_key(world: World) -> None:
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    logins = [await world.users.login(token=token) for token in (maria.token, maria.token, otto.token)]
    (cookie, key), (other_cookie, other_key), (ottos_cookie, ottos_key) = [
        (login.cookie.reveal(), login.key.reveal()) for login in logins
    ]
    for _ in range(2):  # the second time, the valid login is cached
        for cookies, given in (
            ([cookie], other_key),
            ([cookie], ottos_key),
            ([ottos_cookie], key),
            ([cookie], cookie),
            ([key], key),
            ([key], cookie),
            ([cookie], ""),
            ([cookie], "1"),
            ([], key),
            ([""], key),
        ):
            assert await world.users.authenticate_cookie(cookies, given) is None
        found = await world.users.authenticate_cookie([ottos_cookie, other_cookie, cookie, "x" * 5000], key)
        assert found is not None and (found.name, found.means) == ("maria", f"cookie:{logins[0].id}")


async def test_pages_through_users(world: World) -> None:
    names = [f"p{number}" for number in range(7)]
    for name in names:
        await world.users.create(ROOT, name, "member")
    seen: list[User] = []
    page = PageRequest(3)
    while True:
        listing = await world.users.list(ROOT, page)
        seen += listing.items
        if listing.next_cursor is None:
            break
        page = PageRequest(3, listing.next_cursor)
    assert sorted(user.name for user in seen) == names
    assert [user.id for user in seen] == sorted((user.id for user in seen), reverse=True)


def test_passwords_are_salted() -> None:
    one, two = hash_password(PASSWORD), hash_password(PASSWORD)
    assert one != two and one.startswith("scrypt$16384$8$1$") and len(one) < 300
    assert check_password(PASSWORD, one) and check_password(PASSWORD, two)
    assert not check_password(PASSWORD + "!", one) and not check_password(PASSWORD, None)
    for bad in ("short", "x" * 1001):
        with pytest.raises(InvalidInputError):
            hash_password(bad)


def test_unknown_user_takes_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same work is done, counted rather than timed."""
    stored, work, real = hash_password(PASSWORD), [], hashlib.scrypt

    def record_work(password: bytes, **parameters: Any) -> bytes:
        work.append((password, parameters["n"], parameters["r"], parameters["p"], len(parameters["salt"])))
        return real(password, **parameters)

    monkeypatch.setattr(hashlib, "scrypt", record_work)
    assert not check_password("wrong password", stored) and not check_password("wrong password", None)
    assert len(work) == 2 and work[0] == work[1]


async def test_ticket_is_bound_to_its_token(world: World) -> None:
    """Streams it opens end with the token it was created with."""
    maria = await world.create_person("maria")
    principal = await world.users.authenticate_token(maria.token)
    assert principal is not None
    ticket = (await world.users.create_ticket(principal)).value.reveal()
    found = await world.users.authenticate_ticket(ticket)
    assert found == principal
    assert await is_still_valid(world.database, world.clock, found)
    await world.users.revoke_token(principal, principal.means.partition(":")[2])
    assert not await is_still_valid(world.database, world.clock, found)


async def test_replaces_lost_admin_token(world: World) -> None:
    first = await world.users.bootstrap()
    found = await world.users.authenticate_token((await world.users.create_rescue_token()).value.reveal())
    assert found is not None and found.is_admin
    if first is not None:
        assert await world.users.authenticate_token(first.value.reveal()), "the old token stays valid"


@pytest.mark.parametrize("means", ["token", "login"])
async def test_ticket_ends_with_its_token_or_login(world: World, means: str) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    login = await world.users.login(name="maria", password=PASSWORD)
    find = world.users.authenticate_token(maria.token) if means == "token" else authenticate(world, login)
    principal = await find
    assert principal is not None
    ticket = (await world.users.create_ticket(principal)).value.reveal()
    if means == "token":
        await world.users.revoke_token(principal, principal.means.partition(":")[2])
    else:
        await world.users.logout(principal)
    assert await world.users.authenticate_ticket(ticket) is None
