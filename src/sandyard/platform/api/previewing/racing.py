"""Run several coroutines until the first one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from sandyard.kit.tasks import end_tasks


async def first(*works: Coroutine[Any, Any, object]) -> None:
    """Return or raise as the first coroutine does. The others are cancelled and have ended by then."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(*tasks)
    for task in tasks:
        if task in done:
            task.result()
        elif not task.cancelled():
            task.exception()  # mark as retrieved, so that asyncio does not log it
