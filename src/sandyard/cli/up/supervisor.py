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
    stopping, kill_now = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (kill_now if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    running = asyncio.create_task(_run(children, ready))
    stop_requested = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((running, stop_requested), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        running.cancel()
        stop_requested.cancel()
        await asyncio.gather(running, stop_requested, return_exceptions=True)
        stopping.set()
        for child in reversed(children):
            await child.stop(kill_now)


async def _run(children: Sequence[Child], ready: Callable[[], None]) -> None:
    keepers: list[asyncio.Task[None]] = []
    try:
        for child in children[1:]:
            await child.start_early()  # loading code takes seconds and overlaps with the start of the previous child
        for child in children:
            await child.start_and_wait()
            keepers.append(asyncio.create_task(child.keep_running()))
        ready()
        await asyncio.gather(*keepers)
    finally:
        for task in keepers:
            task.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
