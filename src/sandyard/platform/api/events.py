"""Events as a stream (SSE) and page by page.

A client can leave a stream and resume it without loss: each event's `id` is its number, and `Last-Event-ID` (which browsers send
automatically) or `?after=` continues after it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.types import Receive, Scope, Send

from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.api.auth import Caller, StreamCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.paging import Page
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.domain.events.feed import Feed, Subscription
from sandyard.platform.domain.events.model import EventFilter
from sandyard.platform.domain.paging import DEFAULT_LIMIT, MAX_LIMIT
from sandyard.platform.domain.users.authentication import is_still_valid
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
router = api_router("events")
Events = Annotated[Feed, inject("events")]

RETRY_MS = 2000
RECHECK_SECONDS = 10.0
"""How often a stream checks whether its reader is still authorized."""
RETRY_SECONDS = 1.0
EVENTS_PER_CHUNK = 20
"""Events per chunk of a stream. A copy of the chunk is kept for each reader until the reader has received it."""
MAX_EVENT_ID = 2**63 - 1
HEARTBEAT = b":\n\n"
_SAMPLE: dict[str, Any] = {
    "seq": 4711,
    "at": "2026-01-31T10:00:00.123Z",
    "kind": "sandbox.paused",
    "ownerId": "usr_0mh3k7a1x2abcdefghij",
    "projectId": None,
    "taskId": None,
    "sessionId": "ses_0mh3k7a1x2abcdefghij",
    "sandboxId": "sbx_0mh3k7a1x2abcdefghij",
    "data": {"reason": "idle"},
}
_STREAM = {
    "description": (
        "Events as they happen. `id` is the event's number, `event` its kind, `data` the event as JSON. While there are no "
        "events, comments are sent as a heartbeat. `event: events.trimmed` at the beginning means that some of the requested "
        "events are no longer stored."
    ),
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "example": f"retry: {RETRY_MS}\n\nid: 4711\nevent: sandbox.paused\ndata: {json.dumps(_SAMPLE)}\n\n",
        }
    },
}


class EventStream(Response):
    """Send chunks as they become available.

    A client that disconnects ends the subscription, which in turn ends the chunks. Nothing is cancelled, because cancelling a query costs
    the database connection.
    """

    media_type = "text/event-stream"

    def __init__(self, subscription: Subscription, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._subscription = subscription
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        watching = asyncio.create_task(self._wait_for_disconnect(receive))
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watching.cancel()

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._subscription.end()


class EventOut(Model):
    """Something that happened. Which ids are set depends on the kind."""

    model_config = example(**_SAMPLE)

    seq: int = Field(description="Increases with every event. There may be gaps.")
    at: Instant
    kind: str = Field(description="`noun.verb`")
    owner_id: str | None
    project_id: str | None
    task_id: str | None
    session_id: str | None
    sandbox_id: str | None
    data: dict[str, Any]


async def _make_filters(
    session_id: Annotated[str | None, Query(alias="sessionId", description="Only events of this session.")] = None,
    task_id: Annotated[str | None, Query(alias="taskId", description="Only events of this task.")] = None,
    project_id: Annotated[str | None, Query(alias="projectId", description="Only events of this project.")] = None,
    sandbox_id: Annotated[str | None, Query(alias="sandboxId", description="Only events of this sandbox.")] = None,
) -> EventFilter:
    return EventFilter(session_id, task_id, project_id, sandbox_id)


Filters = Annotated[EventFilter, Depends(_make_filters)]
After = Annotated[int | None, Query(ge=0, le=MAX_EVENT_ID, description="The number of the last event you received.")]


@router.get(
    "/events",
    name="event.stream",
    status_code=200,
    summary="Stream events",
    response_class=EventStream,
    responses={200: _STREAM},
)
async def stream(
    request: Request,
    caller: StreamCaller,
    events: Events,
    filters: Filters,
    *,
    after: After = None,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", description="Takes precedence over `after`.", examples=["4711"])
    ] = None,
) -> EventStream:
    """Stream all events you may see.

    Without a number to continue from, the stream starts with new events. It ends when the token is revoked or the login expires.
    """
    subscription = await events.subscribe(caller, filters, _parse_event_id(last_event_id) if last_event_id else after)
    return EventStream(subscription, stream_frames(request, caller, subscription))


@router.get("/events/history", name="event.list", summary="List past events", dependencies=[limit_large_responses()])
async def history(
    caller: Caller,
    events: Events,
    filters: Filters,
    *,
    after: After = None,
    cursor: After = None,
    newest: Annotated[bool, Query(description="Start with the last page instead of the first.")] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of items.")] = DEFAULT_LIMIT,
) -> Page[EventOut]:
    """List events, oldest first.

    `nextCursor` is the number of the last event: send it as `cursor` (or `after`) to get the next page. With `newest`, it is the number of
    the first event, and the next page has the events before it.
    """
    if newest:
        last = await events.list_newest(caller, filters, after=after or 0, before=cursor, limit=limit + 1)
        items = [EventOut.model_validate(event) for event in reversed(last[:limit])]
        return Page(items=items, next_cursor=str(items[0].seq) if len(last) > limit else None)
    found = await events.list_after(caller, filters, cursor or after or 0, limit + 1)
    items = [EventOut.model_validate(event) for event in found[:limit]]
    return Page(items=items, next_cursor=str(items[-1].seq) if len(found) > limit else None)


def _parse_event_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:20]) <= MAX_EVENT_ID):
        raise InvalidInputError("Last-Event-ID must be the number of an event.")
    return int(text)


async def stream_frames(request: Request, caller: Principal, subscription: Subscription) -> AsyncIterator[bytes]:
    """Yield pending events in large chunks.

    While the database is unavailable, the stream stays open without events and continues afterwards.
    """
    services = request.app.state.services
    clock = asyncio.get_running_loop().time
    yield b"retry: %d\n\n" % RETRY_MS
    if subscription.trimmed is not None:
        yield b'event: events.trimmed\ndata: {"upTo":%d}\n\n' % subscription.trimmed
    next_heartbeat = clock() + services.settings.heartbeat_s
    next_check = clock() + RECHECK_SECONDS * random.random()  # noqa: S311 - spreads the checks of clients that connected at the same time
    while not subscription.ended:
        try:
            if clock() >= next_check:
                if not await is_still_valid(services.database, services.clock, caller):
                    log.info("stream_ended", user=caller.user_id, means=caller.means, reason="no longer allowed")
                    return
                next_check = clock() + RECHECK_SECONDS
            found = await subscription.wait_for_batch(max(0.0, min(next_heartbeat, next_check) - clock()))
        except SandyardError as error:
            log.warning("stream_stalled", user=caller.user_id, reason=error.message)
            await subscription.wait(RETRY_SECONDS)
            found = []
        if found:
            for number in range(0, len(found), EVENTS_PER_CHUNK):
                yield b"".join([event.frame for event in found[number : number + EVENTS_PER_CHUNK]])
        elif clock() >= next_heartbeat:
            yield HEARTBEAT
        else:
            continue
        next_heartbeat = clock() + services.settings.heartbeat_s
