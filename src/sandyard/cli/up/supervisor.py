"""Start children in order, each when the previous one is ready, keep them running, and stop them in reverse order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from sandyard.cli.up.child import Child


async def supervise(children: Sequence[Child], ready: Callable[[], None]) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP. A second signal kills what has not stopped yet.

    Raises CommandError if a child does not start the first time. No child is left behind, however this ends.
    """
    stopping, at_once = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (at_once if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    running = asyncio.create_task(_run(children, ready))
    asked = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        running.cancel()
        asked.cancel()
        await asyncio.gather(running, asked, return_exceptions=True)
        stopping.set()
        for child in reversed(children):
            await child.stop(at_once)


async def _run(children: Sequence[Child], ready: Callable[[], None]) -> None:
    keeping: list[asyncio.Task[None]] = []
    try:
        for child in children[1:]:
            await child.load()  # loading code takes seconds and overlaps with the start of the previous child
        for child in children:
            await child.first()
            keeping.append(asyncio.create_task(child.keep()))
        ready()
        await asyncio.gather(*keeping)
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
