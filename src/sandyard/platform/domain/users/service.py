"""Create, change and disable users and tokens. Authentication is in `authentication.py`, which this class includes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.clock import get_time
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NotFoundError, UnauthenticatedError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import ApiToken, Login, McpServer, ModelProvider, Project, Ticket, User
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.users.authentication import Authentication
from sandyard.platform.domain.users.model import (
    IssuedSecret,
    LastAdminError,
    NameTakenError,
    Principal,
    WrongPasswordError,
)
from sandyard.platform.domain.users.passwords import hash_password
from sandyard.platform.domain.users.tokens import HINT_LENGTH, compute_digest, make_token

log = get_logger(__name__)
ROLES = ("admin", "member")
UNCHANGED: Any = object()


class Users(Authentication):
    """Operations on users. Each takes the Principal of the caller. Events contain ids, names and roles, never secrets."""

    async def bootstrap(self) -> IssuedSecret | None:
        """On an empty database, create `admin` and an API token, which is shown only once. Otherwise return None."""
        if await self._count_users() > 0:
            return None
        try:
            async with self._database.transaction() as tx:
                if await tx.session.scalar(select(func.count()).select_from(User)):
                    return None
                user = self._add_user(tx, "admin", "admin", None)
                await tx.session.flush()
                issued = self._add_token(tx, user.id, "first start", None)
        except IntegrityError:
            return None  # another platform on this database started at the same time, and shows its token
        log.info("users_bootstrapped", user=user.id, token=issued.id)
        return issued

    async def create_rescue_token(self) -> IssuedSecret:
        """Create a token for the oldest enabled administrator, shown only once, for an operator who has lost theirs."""
        async with self._database.transaction() as tx:
            query = select(User).where(User.role == "admin", User.disabled_at.is_(None)).order_by(User.id).limit(1)
            user = await tx.session.scalar(query)
            assert user is not None, "the last administrator cannot be removed"
            issued = self._add_token(tx, user.id, "rescue", None)
        log.warning("admin_rescued", user=user.id, token=issued.id)
        return issued

    async def create(self, caller: Principal, name: str, role: str, password: str | None = None) -> User:
        """Create a user. Raises NameTakenError if the name is taken."""
        caller.require_admin()
        _check_role(role)
        hashed = await _hash(password)
        with _handle_name_conflict(name):
            async with self._database.transaction() as tx:
                user = self._add_user(tx, name, role, hashed)
                await tx.session.flush()
        return user

    async def list(self, caller: Principal, page: PageRequest) -> Listing[User]:
        caller.require_admin()
        async with self._database.reading() as session:
            return await list_newest_first(session, select(User), User.id, page)

    async def get(self, caller: Principal, user_id: str) -> User:
        """Return a user. Users may see themselves; administrators may see everyone."""
        if user_id != caller.user_id:
            caller.require_admin()
        async with self._database.reading() as session:
            return await _load(session, user_id)

    async def update(
        self,
        caller: Principal,
        user_id: str,
        *,
        name: str | None = None,
        role: str | None = None,
        disabled: bool | None = None,
        password: str | None = UNCHANGED,
    ) -> User:
        """Change the given fields. A password of None removes it; a new one ends all logins.

        A disabled user is rejected immediately. Their tokens are revoked and their logins end, also if they are enabled again.

        The projects of a user who is no longer an administrator can no longer use private networks.

        Raises LastAdminError instead of leaving an installation without an administrator.
        """
        caller.require_admin()
        if role is not None:
            _check_role(role)
        hashed = UNCHANGED if password is UNCHANGED else await _hash(password)
        with _handle_name_conflict(name or ""):
            async with self._database.transaction() as tx:
                admins = await _lock_admins(tx.session) if role == "member" or disabled else []
                user = await _load(tx.session, user_id)
                if admins == [user.id]:
                    raise LastAdminError
                if role == "member" and user.role == "admin":
                    await _withdraw_approvals(tx, user.id)
                changed = self._apply_changes(user, name, role, disabled, hashed)
                if disabled:
                    await tx.session.flush()  # waits for tokens that are just being created
                    await self._revoke_all_tokens(tx, user.id)
                if disabled or hashed is not UNCHANGED:
                    await tx.session.execute(delete(Login).where(Login.user_id == user.id))
                    await tx.session.execute(delete(Ticket).where(Ticket.user_id == user.id))
                if changed:
                    tx.emit("user.updated", owner_id=user.id, userId=user.id, changed=changed)
        return user

    async def change_own_password(self, caller: Principal, current: str | None, new: str) -> None:
        """Change the caller's password. `current` must be correct, unless no password is set. Raises WrongPasswordError.

        Ends all logins except the caller's own; tokens stay valid. Raises ForbiddenError for a first password that would outlive the
        token that the caller uses.
        """
        async with self._database.reading() as session:
            stored = (await _load(session, caller.user_id)).password
            if stored is None and await _get_token_expiry(session, caller) is not None:
                raise ForbiddenError(
                    "A token that expires cannot set a password, because the password would not expire. "
                    "Use a token without an expiry, or ask an administrator to set a password."
                )
        if stored is not None and not await self._check_password(current or "", stored):
            raise WrongPasswordError
        hashed = await _hash(new)
        kind, _, login_id = caller.means.partition(":")
        async with self._database.transaction() as tx:
            user = await tx.session.get(User, caller.user_id, with_for_update=True)
            if user is None or user.password != stored:  # it was changed meanwhile
                raise WrongPasswordError
            user.password = hashed
            others = delete(Login).where(Login.user_id == user.id)
            await tx.session.execute(others.where(Login.id != login_id) if kind == "cookie" else others)
            await tx.session.execute(delete(Ticket).where(Ticket.user_id == user.id))
            tx.emit("user.updated", owner_id=user.id, userId=user.id, changed=["password"])

    async def delete(self, caller: Principal, user_id: str) -> None:
        """Disable a user and revoke their tokens. What they created is kept. Idempotent."""
        await self.update(caller, user_id, disabled=True)

    async def create_token(self, caller: Principal, name: str, expires_at: datetime | None = None) -> IssuedSecret:
        """Create a token for the caller. The value is shown only once.

        A caller that uses an expiring token, or a login made with one, gets a token that expires with it or earlier.
        """
        if expires_at is not None and expires_at <= get_time(self._clock):
            raise InvalidInputError("expiresAt is in the past. Set a later time.")
        async with self._database.transaction() as tx:
            # the lock makes an update that disables the user wait, so that it revokes this token too
            user = await tx.session.get(User, caller.user_id, with_for_update={"key_share": True})
            if user is not None and user.disabled_at is not None:
                raise UnauthenticatedError("Your account is disabled.")
            latest = await _get_token_expiry(tx.session, caller)
            if latest is not None and expires_at is not None and expires_at > latest:
                raise InvalidInputError(
                    f"expiresAt must not be later than {latest:%Y-%m-%dT%H:%M:%SZ}, when your current token expires. Set an earlier time, "
                    "or sign in with your password."
                )
            return self._add_token(tx, caller.user_id, name, expires_at or latest)

    async def list_tokens(self, caller: Principal, page: PageRequest) -> Listing[ApiToken]:
        """List the caller's valid and expired tokens, without revoked ones."""
        rows = select(ApiToken).where(ApiToken.user_id == caller.user_id, ApiToken.revoked_at.is_(None))
        async with self._database.reading() as session:
            return await list_newest_first(session, rows, ApiToken.id, page)

    async def get_token(self, caller: Principal, token_id: str) -> ApiToken:
        async with self._database.reading() as session:
            return await _load_token(session, caller, token_id)

    async def revoke_token(self, caller: Principal, token_id: str) -> None:
        """Revoke a token and its logins. Administrators may revoke anyone's. Raises NotFoundError if it is revoked already."""
        async with self._database.transaction() as tx:
            token = await _load_token(tx.session, caller, token_id)
            token.revoked_at = get_time(self._clock)
            await tx.session.execute(delete(Login).where(Login.token_id == token.id))
            tx.emit("token.revoked", owner_id=token.user_id, tokenId=token.id, name=token.name)

    async def _revoke_all_tokens(self, tx: Transaction, user_id: str) -> None:
        valid = select(ApiToken).where(ApiToken.user_id == user_id, ApiToken.revoked_at.is_(None))
        for token in list(await tx.session.scalars(valid)):
            token.revoked_at = get_time(self._clock)
            tx.emit("token.revoked", owner_id=user_id, tokenId=token.id, name=token.name)

    async def _count_users(self) -> int:
        async with self._database.reading() as session:
            return int(await session.scalar(select(func.count()).select_from(User)) or 0)

    def _add_user(self, tx: Transaction, name: str, role: str, hashed: str | None) -> User:
        user = User(id=make_ordered_id("usr_"), name=name, role=role, password=hashed, created_at=get_time(self._clock))
        tx.add(user)
        tx.emit("user.created", owner_id=user.id, userId=user.id, name=name, role=role)
        return user

    def _add_token(self, tx: Transaction, user_id: str, name: str, expires_at: datetime | None) -> IssuedSecret:
        value = make_token()
        token = ApiToken(
            id=make_ordered_id("tok_"),
            user_id=user_id,
            name=name,
            hash=compute_digest(value.reveal()),
            hint=value.reveal()[:HINT_LENGTH],
            created_at=get_time(self._clock),
            expires_at=expires_at,
        )
        tx.add(token)
        tx.emit("token.created", owner_id=user_id, tokenId=token.id, name=name)
        return IssuedSecret(token.id, value, expires_at)

    def _apply_changes(
        self, user: User, name: str | None, role: str | None, disabled: bool | None, hashed: Any
    ) -> Sequence[str]:
        changed: list[str] = []
        if name is not None and name != user.name:
            user.name = name
            changed.append("name")
        if role is not None and role != user.role:
            user.role = role
            changed.append("role")
        if disabled is not None and disabled != (user.disabled_at is not None):
            user.disabled_at = get_time(self._clock) if disabled else None
            changed.append("disabled")
        if hashed is not UNCHANGED:
            user.password = hashed
            changed.append("password")
        return changed


async def _load(session: AsyncSession, user_id: str) -> User:
    user = await session.get(User, user_id)
    if user is None:
        raise NotFoundError(f"There is no user {user_id[:60]}.")
    return user


async def _load_token(session: AsyncSession, caller: Principal, token_id: str) -> ApiToken:
    token = await session.get(ApiToken, token_id)
    if token is None or token.revoked_at is not None or not (caller.is_admin or token.user_id == caller.user_id):
        raise NotFoundError(f"There is no token {token_id[:60]}.")
    return token


async def _get_token_expiry(session: AsyncSession, caller: Principal) -> datetime | None:
    """Return when the token expires that the caller uses or has signed in with; None if it does not expire or there is none."""
    means, _, token_id = caller.means.partition(":")
    if means == "cookie":
        login = await session.get(Login, token_id)
        if login is None:
            raise UnauthenticatedError("Your login has expired. Sign in again.")
        token_id = login.token_id or ""
    token = await session.get(ApiToken, token_id)
    return None if token is None else token.expires_at


async def _withdraw_approvals(tx: Transaction, user_id: str) -> None:
    """Have the addresses of model providers and MCP servers in the user's projects checked at every connection.

    Another administrator can approve an address by saving it again.
    """
    owned = select(Project.id).where(Project.owner_id == user_id)
    for table in (ModelProvider, McpServer):
        await tx.session.execute(update(table).where(table.project_id.in_(owned)).values(named_by_admin=False))


async def _lock_admins(session: AsyncSession) -> list[str]:
    """Lock the administrators before any change, so that of two who demote each other the second one sees the first change."""
    admins = select(User.id).where(User.role == "admin", User.disabled_at.is_(None)).order_by(User.id)
    return list(await session.scalars(admins.with_for_update()))


async def _hash(password: str | None) -> str | None:
    return None if password is None else await asyncio.to_thread(hash_password, password)


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise InvalidInputError("The role must be admin or member.")


@contextlib.contextmanager
def _handle_name_conflict(name: str) -> Any:
    try:
        yield
    except IntegrityError:
        raise NameTakenError(f"The name {name[:60]!r} is already taken.") from None
