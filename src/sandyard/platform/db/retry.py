"""Wait for the database: repeat work while the database is temporarily unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import DatabaseBusyError, DatabaseFullError, DatabaseUnavailableError

log = get_logger(__name__)
T = TypeVar("T")

RETRY_S = 0.5
"""Delay before work is repeated."""
TEMPORARY_ERRORS = (DatabaseUnavailableError, DatabaseBusyError, DatabaseFullError)
"""Errors of the database that disappear by themselves."""


async def retry_while_database_unavailable(
    work: Callable[[], Awaitable[T]],
    what: str,
    *,
    errors: tuple[type[SandyardError], ...] = TEMPORARY_ERRORS,
    **ids: str,
) -> T:
    """Run `work`, and repeat it while the database is unavailable, busy or full, or only for the given `errors`.

    It is unknown whether an interrupted commit took effect, so `work` must be safe to repeat, as after a crash.
    `what` and `ids` are for the log.
    """
    waited = False
    while True:
        try:
            return await work()
        except errors as error:
            if not waited:
                log.warning("database_awaited", work=what, reason=error.message, **ids)
            waited = True
        await asyncio.sleep(RETRY_S)
