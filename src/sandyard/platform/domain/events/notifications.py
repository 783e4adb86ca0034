"""Listen for PostgreSQL notifications about events committed by any platform.

While the connection is down, the feed's own check every second finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import CHANNEL, Database

log = get_logger(__name__)
RETRY_SECONDS = 1.0
CHECK_SECONDS = 30.0
RESPONSE_SECONDS = 10.0
_CONNECTION_ERRORS = (
    SandyardError,
    OSError,
    TimeoutError,
    SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


async def listen(database: Database, wake: Callable[[], None]) -> None:
    """Call `wake` after every commit with events, until cancelled.

    Uses its own connection, configured like the database's, and reconnects when it breaks.
    """
    lost = False
    while True:
        try:
            async with database.dedicated_connection() as connection:
                broken = asyncio.Event()
                connection.add_termination_listener(lambda _, done=broken: done.set())
                await connection.add_listener(CHANNEL, lambda *_: wake())
                if lost:
                    log.info("events_listening_again")
                lost = False
                wake()  # something may have been committed while not listening
                await _wait_until_broken(connection, broken)
        except _CONNECTION_ERRORS as error:
            reason = str(error) or type(error).__name__
        else:
            reason = "the server closed the connection"
        if not lost:
            log.warning("events_not_listening", reason=reason)
            lost = True
        await asyncio.sleep(RETRY_SECONDS)


async def _wait_until_broken(connection: Any, broken: asyncio.Event) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await broken.wait()
        if broken.is_set():
            return
        await connection.fetchval("SELECT 1", timeout=RESPONSE_SECONDS)  # a connection can die silently
