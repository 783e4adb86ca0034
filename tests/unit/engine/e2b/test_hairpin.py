"""Requests of sandboxes to public names: each is asked for by name, and none comes faster than its sandbox may ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.engine.contract import PublicNames
from sandyard.engine.e2b.dataplane import hairpin
from sandyard.engine.e2b.dataplane.hairpin import BURST, PATIENCE_SECONDS, RATE, ClientRateLimiter, HairpinGateway

FRIEND, OTHER, API = b"8000-friend.x.test", b"8000-other.x.test", b"api.x.test"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


async def test_a_sandbox_that_asks_without_end_waits_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pauses = Clock(), list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(hairpin, "now", clock.time)
    monkeypatch.setattr(hairpin.asyncio, "sleep", sleep)
    pace = ClientRateLimiter()
    assert all([await pace.wait("greedy") for _ in range(BURST)])
    assert pauses == [], "a page with much on it is nothing unusual"
    most = int(PATIENCE_SECONDS * RATE)
    answers = [await pace.wait("greedy") for _ in range(most + 100)]
    assert abs(answers.count(True) - most) <= 2
    assert max(pauses) <= PATIENCE_SECONDS
    assert not answers[-1]
    assert await pace.wait("another")
    clock.now += PATIENCE_SECONDS
    assert await pace.wait("greedy"), "and goes on later"


async def _status(*headers: tuple[bytes, bytes], path: str = "/", allowed: bytes = FRIEND) -> int:
    """The status of a request out of a sandbox whose policy allows one name; 200 if it reaches the gateway."""
    statuses = []

    async def gateway(scope: Any, receive: Any, send: Any) -> None:
        statuses.append(200)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    policy = SimpleNamespace(is_allowed=lambda address, name: name == allowed.decode())
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "client": ("10.0.0.2", 1),
        "headers": list(headers),
    }
    await HairpinGateway(cast("Any", gateway), cast("Any", policy), PublicNames("x.test", 443))(scope, receive, send)
    return statuses[0]


async def test_the_policy_is_asked_for_what_the_gateway_routes_to() -> None:
    assert await _status((b"host", FRIEND)) == 200
    assert await _status((b"host", OTHER)) == 403
    for first, second in ((FRIEND, OTHER), (OTHER, FRIEND), (FRIEND, API)):
        assert await _status((b"host", first), (b"host", second)) == 400
    assert await _status() == 400
    assert await _status((b"host", FRIEND), (b"e2b-sandbox-id", b"other")) == 403
    assert await _status((b"host", FRIEND), (b"e2b-sandbox-id", b"any"), path="/sandboxes/any") == 403, "the API"
    assert await _status((b"host", b"any.x.test"), allowed=b"any.x.test") == 403, "the API, under another name"
    assert await _status((b"host", API), path="/sandboxes", allowed=API) == 200
