"""Waiting for what is seen, never for how long it may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


def until(seen: Callable[[], object], seconds: float = 15) -> None:
    """Return as soon as `seen` is true; fail when it has not been for `seconds`."""
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline, f"not seen within {seconds} s"
        time.sleep(0.05)


async def until_async(seen: Callable[[], Awaitable[object]], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not await seen():
        assert time.monotonic() < deadline, f"not seen within {seconds} s"
        await asyncio.sleep(0.05)
