"""Server-sent events: their format, and following them over a connection that drops."""

from __future__ import annotations

import itertools

import pytest

from sandyard.cli import sse
from sandyard.cli.connection import connect
from sandyard.cli.errors import ApiError, NoResponseError
from sandyard.cli.sse import Event, follow, parse
from tests.unit.cli.server import Server, events, problem


def lines(*chunks: str) -> list[str]:
    return list(sse.split_lines(chunks))


def test_lines_are_split_as_the_format_defines() -> None:
    assert lines("a\nb\r\nc\rd\n") == ["a", "b", "c", "d"]
    assert lines("a\r", "\nb\n") == ["a", "b"]
    assert lines("a\r", "b\n") == ["a", "b"]
    assert lines("one\u2028line\x85still\x0cthis\n") == ["one\u2028line\x85still\x0cthis"]
    assert lines("cut o", "ff") == []


def test_events_are_parsed() -> None:
    text = ": hello\n\nid: 7\nevent: output\ndata: one\ndata:two\n\ndata\n\nretry: 5\n\nid: 8\ndata: cut"
    assert list(parse(lines(text + "\n"))) == [Event("7", "output", "one\ntwo"), Event("7", "message", "")]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "FIRST_PAUSE_SECONDS", 0.01)


def test_a_dropped_stream_is_resumed_after_the_last_event(server: Server) -> None:
    server.on("GET", "/events", events(("4", "a", 1), ("5", "a", 2), cut=True), events(("6", "a", 3)))
    reasons: list[str] = []
    with connect() as client:
        seen = list(itertools.islice(follow(client, "/events", {"sessionId": "ses_1"}, on_drop=reasons.append), 3))
    assert [event.id for event in seen] == ["4", "5", "6"]
    assert [request.headers.get("last-event-id") for request in server.requests] == [None, "5"]
    assert all(request.query == {"sessionId": "ses_1"} for request in server.requests)
    assert len(reasons) == 1


def test_a_restarting_server_is_retried(server: Server) -> None:
    server.on("GET", "/events", events(("1", "a", 1)), problem(503, "busy", "Busy."), events(("2", "a", 2)))
    with connect() as client:
        seen = list(itertools.islice(follow(client, "/events", {}, after="0"), 2))
    assert [event.id for event in seen] == ["1", "2"]
    assert [request.headers.get("last-event-id") for request in server.requests] == ["0", "1", "1"]


def test_an_authentication_error_is_raised(server: Server) -> None:
    server.on("GET", "/events", events(("1", "a", 1)), problem(401, "unauthenticated", "The token was revoked."))
    with connect() as client, pytest.raises(ApiError, match="revoked"):
        list(itertools.islice(follow(client, "/events", {}), 5))


def test_retrying_ends_after_the_given_time(server: Server) -> None:
    server.on("GET", "/events", events(("1", "a", 1)), problem(503, "busy", "Busy."))
    with connect() as client, pytest.raises(NoResponseError, match="Busy"):
        list(itertools.islice(follow(client, "/events", {}, give_up=0.05), 5))
