"""Close long-lived connections when their user loses access."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import HTTPConnection

from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError
from sandyard.platform.domain.users.authentication import is_still_valid
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
RECHECK_SECONDS = 10.0


async def wait_until_revoked(
    connection: HTTPConnection, caller: Principal, check_access: Callable[[], Awaitable[object]]
) -> None:
    """Return when the caller's token, login or account is no longer valid, or `check_access` raises NotFoundError or
    OwnerWithoutAccessError."""
    services = connection.app.state.services
    while True:
        await asyncio.sleep(RECHECK_SECONDS)
        try:
            if not await is_still_valid(services.database, services.clock, caller):
                break
            await check_access()
        except (NotFoundError, OwnerWithoutAccessError):
            break
        except SandyardError as error:
            log.warning("standing_unknown", user=caller.user_id, reason=error.message)
    log.info("connection_ended", user=caller.user_id, means=caller.means, reason="no longer allowed")


async def end_when_revoked(
    connection: HTTPConnection,
    caller: Principal,
    check_access: Callable[[], Awaitable[object]],
    chunks: AsyncIterator[bytes],
) -> AsyncIterator[bytes]:
    """Yield the chunks of a long response until the caller may no longer read them."""
    revocation = asyncio.ensure_future(wait_until_revoked(connection, caller, check_access))
    try:
        async for chunk in chunks:
            if revocation.done():
                return
            yield chunk
    finally:
        revocation.cancel()
