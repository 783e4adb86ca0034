"""Wait for conditions, never for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


def until(condition: Callable[[], object], seconds: float = 15) -> None:
    """Return as soon as `condition` is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds} s"
        time.sleep(0.05)


async def until_async(condition: Callable[[], Awaitable[object]], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds} s"
        await asyncio.sleep(0.05)
