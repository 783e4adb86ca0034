"""Authentication: by token, cookie and key, ticket, or name and password.

Disabled users and revoked or expired credentials are rejected immediately. Changes made by another platform on the same database
take effect within a second, because lookups are cached that long; changes made here clear the cache.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import delete, or_, select, update

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import ApiToken, Event, Login, Ticket, User
from sandyard.platform.domain.users.model import IssuedLogin, IssuedSecret, Principal, WrongLoginError
from sandyard.platform.domain.users.passwords import check_password
from sandyard.platform.domain.users.tokens import TOKEN, compute_digest, make_value
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
TICKET_SECONDS = 30
RECORD_USE_EVERY = timedelta(minutes=1)
CACHE_SECONDS = 1.0
_MAX_CACHED = 10_000
_MAX_HASHING = 4


class _CachedLookup(NamedTuple):
    cached_at: float
    expires_at: datetime | None
    principal: Principal


class Authentication:
    """Authenticates users and manages their logins and tickets."""

    def __init__(self, settings: PlatformSettings, database: Database, clock: Clock) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self.tasks = TaskSet("users")
        self._recording_use: set[str] = set()
        self._cache: dict[str, _CachedLookup] = {}
        database.listen(self._clear_cache_after_change)
        self._hashing = asyncio.Semaphore(_MAX_HASHING)  # each takes 16 MiB and a core

    async def authenticate_token(self, value: str) -> Principal | None:
        """Return the token's user. Records its last use later, at most once a minute."""
        if not TOKEN.fullmatch(value):
            return None
        now, hashed, cache = get_time(self._clock), compute_digest(value), self._cache
        cached = self._find_cached(hashed)
        if cached is not None:
            return cached
        query = select(
            ApiToken.id, ApiToken.hash, ApiToken.expires_at, ApiToken.last_used_at, User.id, User.name, User.role
        ).join_from(ApiToken, User)
        query = query.where(ApiToken.hash == hashed, ApiToken.revoked_at.is_(None), User.disabled_at.is_(None))
        async with self._database.reading() as session:
            row = (await session.execute(query)).first()
        if row is None:
            return None
        token_id, stored_hash, expires_at, last_used_at, user_id, name, role = row
        if not hmac.compare_digest(stored_hash, hashed) or (expires_at is not None and expires_at <= now):
            return None
        if (last_used_at is None or now - last_used_at >= RECORD_USE_EVERY) and token_id not in self._recording_use:
            self._recording_use.add(token_id)
            self.tasks.spawn(self._record_use(token_id))
        principal = Principal(user_id, name, role, f"token:{token_id}")
        return _add_to_cache(cache, hashed, _CachedLookup(self._clock.now(), expires_at, principal))

    async def authenticate_cookie(self, values: Collection[str], key: str) -> Principal | None:
        """Return the user of the login with this key, if its cookie is one of the values. Neither is enough without the other."""
        hashes, key_hash, cache = {compute_digest(value) for value in values}, compute_digest(key), self._cache
        for hashed in hashes:
            cached = self._find_cached(f"{hashed} {key_hash}")
            if cached is not None:
                return cached
        query = select(Login.id, Login.hash, Login.key_hash, User.id, User.name, User.role).join_from(Login, User)
        query = query.where(Login.key_hash == key_hash, Login.expires_at > get_time(self._clock))
        async with self._database.reading() as session:
            row = (await session.execute(query.where(User.disabled_at.is_(None)))).first()
        if row is None:
            return None
        login_id, stored_hash, stored_key_hash, user_id, name, role = row
        matches = [hmac.compare_digest(stored_hash, hashed) for hashed in hashes]
        if not any(matches) or not hmac.compare_digest(stored_key_hash, key_hash):
            return None
        principal = Principal(user_id, name, role, f"cookie:{login_id}")
        return _add_to_cache(cache, f"{stored_hash} {key_hash}", _CachedLookup(self._clock.now(), None, principal))

    async def authenticate_ticket(self, value: str) -> Principal | None:
        """Return the ticket's user and consume the ticket. Of two concurrent uses, one succeeds.

        A ticket ends with the token or login with which it was created.
        """
        hashed = compute_digest(value)
        async with self._database.transaction() as tx:
            deleted = await tx.session.execute(
                delete(Ticket).where(Ticket.hash == hashed).returning(Ticket.user_id, Ticket.expires_at, Ticket.means)
            )
            ticket = deleted.first()
            if ticket is None or ticket.expires_at <= get_time(self._clock):
                return None
            user = await tx.session.get(User, ticket.user_id)
        if user is None:
            return None
        principal = Principal(user.id, user.name, user.role, ticket.means)
        return principal if await is_still_valid(self._database, self._clock, principal) else None

    async def login(
        self, *, name: str | None = None, password: str | None = None, token: str | None = None
    ) -> IssuedLogin:
        """Create a login for a name and password, or for a token. A login for a token ends with the token.

        Raises WrongLoginError, which reveals what was wrong neither by its message nor by its timing.
        """
        password_hash = token_id = None
        if token is not None:
            principal = await self.authenticate_token(token)
            user_id = principal.user_id if principal else None
            token_id = principal.means.partition(":")[2] if principal else None
        else:
            user_id, password_hash = await self._check_name_and_password(name or "", password or "")
        if user_id is None:
            raise WrongLoginError
        now, cookie, key = get_time(self._clock), make_value(), make_value()
        expires = now + timedelta(days=self._settings.login_days)
        async with self._database.transaction() as tx:
            if token_id is not None:
                used = await tx.session.get(ApiToken, token_id, with_for_update={"key_share": True})
                if used is None or used.revoked_at is not None:
                    raise WrongLoginError
                expires = min(expires, used.expires_at or expires)
            # a password changed meanwhile has already ended all logins
            user = await tx.session.get(User, user_id, with_for_update={"key_share": True})
            if (
                user is None
                or user.disabled_at is not None
                or (password_hash is not None and user.password != password_hash)
            ):
                raise WrongLoginError
            login = Login(
                id=make_ordered_id("lgn_"),
                user_id=user_id,
                token_id=token_id,
                hash=compute_digest(cookie.reveal()),
                key_hash=compute_digest(key.reveal()),
                created_at=now,
                expires_at=expires,
            )
            tx.add(login)
        log.info("login_created", user=user_id, login=login.id)
        return IssuedLogin(login.id, cookie, key, expires)

    async def logout(self, caller: Principal) -> None:
        """End the login that the caller uses. Does nothing for a token. Idempotent."""
        means, _, login_id = caller.means.partition(":")
        if means != "cookie":
            return
        async with self._database.transaction() as tx:
            await tx.session.execute(delete(Login).where(Login.id == login_id))
        self._cache = {}

    async def create_ticket(self, caller: Principal) -> IssuedSecret:
        """Create a ticket that is valid once, for TICKET_SECONDS, and only as long as the caller's token or login."""
        value = make_value()
        expires = get_time(self._clock) + timedelta(seconds=TICKET_SECONDS)
        async with self._database.transaction() as tx:
            ticket = Ticket(
                hash=compute_digest(value.reveal()), user_id=caller.user_id, means=caller.means, expires_at=expires
            )
            tx.add(ticket)
        return IssuedSecret("", value, expires)

    async def sweep(self) -> int:
        """Remove expired logins and tickets, and return how many. Called periodically."""
        now = get_time(self._clock)
        async with self._database.transaction() as tx:
            logins = await tx.session.execute(delete(Login).where(Login.expires_at <= now).returning(Login.id))
            tickets = await tx.session.execute(delete(Ticket).where(Ticket.expires_at <= now).returning(Ticket.hash))
            return len(logins.all()) + len(tickets.all())

    async def close(self) -> None:
        await self.tasks.wait(5)
        await self.tasks.cancel()

    def _find_cached(self, hashed: str) -> Principal | None:
        """Return the cached user, if the lookup is recent and nothing has changed since."""
        lookup = self._cache.get(hashed)
        if lookup is None or not 0 <= self._clock.now() - lookup.cached_at < CACHE_SECONDS:
            return None
        is_expired = lookup.expires_at is not None and lookup.expires_at <= get_time(self._clock)
        return None if is_expired else lookup.principal

    def _clear_cache_after_change(self, events: Sequence[Event]) -> None:
        if any(event.kind.startswith(("user.", "token.")) for event in events):
            self._cache = {}

    async def _check_name_and_password(self, name: str, password: str) -> tuple[str | None, str | None]:
        """Return the user's id and the stored password hash; None if there is no such user."""
        query = select(User.id, User.password).where(User.name == name, User.disabled_at.is_(None))
        async with self._database.reading() as session:
            row = (await session.execute(query)).first()
        is_correct = await self._check_password(password, row[1] if row else None)
        return (row[0], row[1]) if row is not None and is_correct else (None, None)

    async def _check_password(self, password: str, stored: str | None) -> bool:
        async with self._hashing:
            return await asyncio.to_thread(check_password, password, stored)

    async def _record_use(self, token_id: str) -> None:
        now = get_time(self._clock)
        is_due = or_(ApiToken.last_used_at.is_(None), ApiToken.last_used_at <= now - RECORD_USE_EVERY)
        try:
            async with self._database.transaction() as tx:
                await tx.session.execute(
                    update(ApiToken).where(ApiToken.id == token_id, is_due).values(last_used_at=now)
                )
        except SandyardError as error:
            log.warning("token_use_not_written", token=token_id, reason=error.message)
        finally:
            self._recording_use.discard(token_id)


def _add_to_cache(cache: dict[str, _CachedLookup], hashed: str, lookup: _CachedLookup) -> Principal:
    """Cache the lookup. `cache` is the cache before the lookup; a change since then has replaced it, so a stale result is dropped."""
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    cache[hashed] = lookup
    return lookup.principal


async def is_still_valid(database: Database, clock: Clock, principal: Principal) -> bool:
    """Return False once the user is disabled or has another role, or the token or login has ended.

    Long streams call this periodically. Raises DatabaseUnavailableError.
    """
    now = datetime.fromtimestamp(clock.now(), UTC)
    query = select(User.id).where(User.id == principal.user_id, User.role == principal.role, User.disabled_at.is_(None))
    means, _, credential_id = principal.means.partition(":")
    if means == "token":
        is_not_expired = or_(ApiToken.expires_at.is_(None), ApiToken.expires_at > now)
        query = query.join(ApiToken, ApiToken.user_id == User.id)
        query = query.where(ApiToken.id == credential_id, ApiToken.revoked_at.is_(None), is_not_expired)
    elif means == "cookie":
        query = query.join(Login, Login.user_id == User.id).where(Login.id == credential_id, Login.expires_at > now)
    async with database.reading() as session:
        return await session.scalar(query) is not None
