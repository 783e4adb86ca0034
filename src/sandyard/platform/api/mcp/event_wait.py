"""Wait for events for a limited time, and report progress to the client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sandyard.platform.api.mcp.tool import Call
from sandyard.platform.domain.events.model import EventFilter, EventView
from sandyard.platform.domain.sandboxes.commands import StoppingError

T = TypeVar("T")
PROGRESS_S = 5.0


async def wait_for_events(
    call: Call,
    filters: EventFilter,
    look: Callable[[], Awaitable[T]],
    over: Callable[[T], bool],
    say: Callable[[T], str],
    seconds: float,
) -> T:
    """Return what `look` finds as soon as it is `over`, or when the time has passed.

    Looks again after each event and after periods without events. Each look uses the caller's permissions, which may change meanwhile.
    Raises StoppingError if the platform stops.
    """
    started = told = time.monotonic()
    news = await call.services.events.subscribe(call.caller, filters)
    found = await look()
    while not over(found) and (left := started + seconds - time.monotonic()) > 0:
        events = await news.batch(min(left, PROGRESS_S))
        if news.ended:
            raise StoppingError("The platform is stopping. The work continues: try again in a moment.")
        if not events:
            await call.check_standing()
        found = await look()
        now = time.monotonic()
        if not events or (now - told > 1 and not _is_chatter(events)):
            told = now
            await call.progress(now - started, seconds, say(found))
    return found


def _is_chatter(events: Sequence[EventView]) -> bool:
    """Return whether all events are streamed output of agents or commands."""
    return all(event.kind.startswith(("message.", "command.")) for event in events)
