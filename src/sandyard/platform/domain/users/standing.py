"""Re-check the authentication of long-lived connections."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import or_, select

from sandyard.kit.clock import Clock
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import ApiToken, Login, User
from sandyard.platform.domain.users.model import Principal


async def stands(database: Database, clock: Clock, principal: Principal) -> bool:
    """Return False once the user is disabled or has another role, or the token or login has ended.

    Long streams call this periodically. Raises DatabaseUnavailableError.
    """
    now = datetime.fromtimestamp(clock.now(), UTC)
    query = select(User.id).where(User.id == principal.user_id, User.role == principal.role, User.disabled_at.is_(None))
    means, _, number = principal.means.partition(":")
    if means == "token":
        alive = or_(ApiToken.expires_at.is_(None), ApiToken.expires_at > now)
        query = query.join(ApiToken, ApiToken.user_id == User.id)
        query = query.where(ApiToken.id == number, ApiToken.revoked_at.is_(None), alive)
    elif means == "cookie":
        query = query.join(Login, Login.user_id == User.id).where(Login.id == number, Login.expires_at > now)
    async with database.reading() as session:
        return await session.scalar(query) is not None
