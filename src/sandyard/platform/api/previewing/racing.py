"""Several things at once, of which the first to end ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from sandyard.kit.tasks import end_tasks


async def first(*works: Coroutine[Any, Any, object]) -> None:
    """Returns or raises as the first of them does; the others are cancelled and have ended by then."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(*tasks)
    for task in tasks:
        if task in done:
            task.result()
        elif not task.cancelled():
            task.exception()  # nobody asks for it, and nobody is to hear of that
