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
    load: Callable[[], Awaitable[T]],
    is_over: Callable[[T], bool],
    describe: Callable[[T], str],
    seconds: float,
) -> T:
    """Return what `load` returns as soon as `is_over` accepts it, or when the time has passed.

    Loads again after each event and after periods without events, each time with the caller's permissions, which may change meanwhile.
    Raises UnauthenticatedError if the caller's token or role has become invalid, however many events there are, and StoppingError if the
    platform stops. Whoever called the tool checks the authorization once more before the result is returned.
    """
    started = reported_at = checked_at = time.monotonic()
    subscription = await call.services.events.subscribe(call.caller, filters)
    found = await load()
    while not is_over(found) and (left := started + seconds - time.monotonic()) > 0:
        events = await subscription.wait_for_batch(min(left, PROGRESS_S))
        if subscription.ended:
            raise StoppingError("The platform is stopping. The work continues: try again in a moment.")
        now = time.monotonic()
        if now - checked_at >= PROGRESS_S:
            await call.check_authorization()
            checked_at = now
        found = await load()
        if not events or (now - reported_at > 1 and not _is_output(events)):
            reported_at = now
            await call.progress(now - started, seconds, describe(found))
    return found


def _is_output(events: Sequence[EventView]) -> bool:
    """Return whether all events are streamed output of agents or commands."""
    return all(event.kind.startswith(("message.", "command.")) for event in events)
