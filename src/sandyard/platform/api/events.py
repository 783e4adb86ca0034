"""What happens, as a stream (SSE) and page by page.

A stream can be left and taken up again without loss: each event's `id` is its number, and `Last-Event-ID` (which
browsers send by themselves) or `?after=` continues behind it.
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
from sandyard.platform.api.answers import large_answer
from sandyard.platform.api.auth import Caller, StreamCaller
from sandyard.platform.api.paging import Page
from sandyard.platform.api.parts import part
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.domain.events.feed import Feed, Subscription
from sandyard.platform.domain.events.model import EventFilter
from sandyard.platform.domain.paging import DEFAULT_LIMIT, MAX_LIMIT
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.domain.users.standing import stands

log = get_logger(__name__)
router = api_router("events")
Events = Annotated[Feed, part("events")]

RETRY_MS = 2000
STANDING_SECONDS = 10.0
"""How often a stream asks whether its reader may still come in."""
AGAIN_SECONDS = 1.0
AT_ONCE = 20
"""Events in one piece of a stream: a copy of it is kept for each reader until they have taken it."""
HIGHEST = 2**63 - 1
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
        "Events as they happen. `id` is the event's number, `event` its kind, `data` the event as JSON. A comment "
        "comes when nothing else does. `event: events.trimmed` at the beginning means that some of what was asked for "
        "is no longer kept."
    ),
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "example": f"retry: {RETRY_MS}\n\nid: 4711\nevent: sandbox.paused\ndata: {json.dumps(_SAMPLE)}\n\n",
        }
    },
}


class EventStream(Response):
    """Sends pieces as they come. A client that leaves ends the subscription, which then ends the pieces: nothing is
    cancelled, because a query that is cancelled half-way costs the database's connection."""

    media_type = "text/event-stream"

    def __init__(self, subscription: Subscription, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._subscription = subscription
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        watching = asyncio.create_task(self._watch(receive))
        try:
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watching.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._subscription.end()


class EventOut(Model):
    """Something that happened. Which ids it carries depends on its kind."""

    model_config = example(**_SAMPLE)

    seq: int = Field(description="Grows with every event, with gaps.")
    at: Instant
    kind: str = Field(description="`noun.verb`")
    owner_id: str | None
    project_id: str | None
    task_id: str | None
    session_id: str | None
    sandbox_id: str | None
    data: dict[str, Any]


async def _filters(
    session_id: Annotated[str | None, Query(alias="sessionId", description="Only of this session.")] = None,
    task_id: Annotated[str | None, Query(alias="taskId", description="Only of this task.")] = None,
    project_id: Annotated[str | None, Query(alias="projectId", description="Only of this project.")] = None,
    sandbox_id: Annotated[str | None, Query(alias="sandboxId", description="Only of this sandbox.")] = None,
) -> EventFilter:
    return EventFilter(session_id, task_id, project_id, sandbox_id)


Filters = Annotated[EventFilter, Depends(_filters)]
After = Annotated[int | None, Query(ge=0, le=HIGHEST, description="The number of the last event that was seen.")]


@router.get(
    "/events",
    name="event.stream",
    status_code=200,
    summary="Follow events",
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
        str | None, Header(alias="Last-Event-ID", description="Goes before `after`.", examples=["4711"])
    ] = None,
) -> EventStream:
    """Everything the caller may see. Without a number to continue from, it begins now. A stream ends when its token or
    login does."""
    subscription = await events.subscribe(caller, filters, _number(last_event_id) if last_event_id else after)
    return EventStream(subscription, _frames(request, caller, subscription))


@router.get("/events/history", name="event.list", summary="Read events back", dependencies=[large_answer()])
async def history(
    caller: Caller,
    events: Events,
    filters: Filters,
    *,
    after: After = None,
    cursor: After = None,
    newest: Annotated[bool, Query(description="Begin with the last page instead of the first.")] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many at most.")] = DEFAULT_LIMIT,
) -> Page[EventOut]:
    """Oldest first. `nextCursor` is the number of the last one: send it as `cursor` (or `after`) for the next page. With
    `newest` it is the number of the first one, and the next page has what came before."""
    if newest:
        last = await events.newest(caller, filters, after=after or 0, before=cursor, limit=limit + 1)
        items = [EventOut.model_validate(event) for event in reversed(last[:limit])]
        return Page(items=items, next_cursor=str(items[0].seq) if len(last) > limit else None)
    found = await events.history(caller, filters, cursor or after or 0, limit + 1)
    items = [EventOut.model_validate(event) for event in found[:limit]]
    return Page(items=items, next_cursor=str(items[-1].seq) if len(found) > limit else None)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:20]) <= HIGHEST):
        raise InvalidInputError("Last-Event-ID is not the id of an event.")
    return int(text)


async def _frames(request: Request, caller: Principal, subscription: Subscription) -> AsyncIterator[bytes]:
    """What is pending goes out in large pieces. While the database is away the stream stays, quiet, and goes on after."""
    services = request.app.state.services
    clock = asyncio.get_running_loop().time
    yield b"retry: %d\n\n" % RETRY_MS
    if subscription.trimmed is not None:
        yield b'event: events.trimmed\ndata: {"upTo":%d}\n\n' % subscription.trimmed
    beat = clock() + services.settings.heartbeat_s
    look = clock() + STANDING_SECONDS * random.random()  # noqa: S311 - so that not all who came at once ask at once
    while not subscription.ended:
        try:
            if clock() >= look:
                if not await stands(services.database, services.clock, caller):
                    log.info("stream_ended", user=caller.user_id, means=caller.means, reason="no longer allowed")
                    return
                look = clock() + STANDING_SECONDS
            found = await subscription.batch(max(0.0, min(beat, look) - clock()))
        except SandyardError as error:
            log.warning("stream_stalled", user=caller.user_id, reason=error.message)
            await subscription.wait(AGAIN_SECONDS)
            found = []
        if found:
            for number in range(0, len(found), AT_ONCE):
                yield b"".join([event.frame for event in found[number : number + AT_ONCE]])
        elif clock() >= beat:
            yield HEARTBEAT
        else:
            continue
        beat = clock() + services.settings.heartbeat_s
