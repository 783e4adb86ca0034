"""Requests from sandboxes to public names: the policy is checked per name, and requests are rate-limited per sandbox."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.engine.contract import PublicNames
from sandyard.engine.e2b.dataplane import hairpin
from sandyard.engine.e2b.dataplane.hairpin import BURST, MAX_WAIT_SECONDS, RATE, ClientRateLimiter, HairpinGateway

ALLOWED_HOST, OTHER_HOST, API_HOST = b"8000-friend.x.test", b"8000-other.x.test", b"api.x.test"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


async def test_a_sandbox_that_sends_too_many_requests_is_delayed_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pauses = Clock(), list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(hairpin, "now", clock.time)
    monkeypatch.setattr(hairpin.asyncio, "sleep", sleep)
    limiter = ClientRateLimiter()
    assert all([await limiter.wait("greedy") for _ in range(BURST)])
    assert pauses == [], "a burst, such as loading a page, is not delayed"
    allowed_while_waiting = int(MAX_WAIT_SECONDS * RATE)
    results = [await limiter.wait("greedy") for _ in range(allowed_while_waiting + 100)]
    assert abs(results.count(True) - allowed_while_waiting) <= 2
    assert max(pauses) <= MAX_WAIT_SECONDS
    assert not results[-1]
    assert await limiter.wait("another")
    clock.now += MAX_WAIT_SECONDS
    assert await limiter.wait("greedy"), "requests are accepted again later"


async def _send_and_get_status(*headers: tuple[bytes, bytes], path: str = "/", allowed: bytes = ALLOWED_HOST) -> int:
    """Return the status of a request from a sandbox whose policy allows one name; 200 if it reaches the gateway."""
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


async def test_the_policy_is_checked_for_the_name_the_gateway_routes_to() -> None:
    assert await _send_and_get_status((b"host", ALLOWED_HOST)) == 200
    assert await _send_and_get_status((b"host", OTHER_HOST)) == 403
    for first, second in ((ALLOWED_HOST, OTHER_HOST), (OTHER_HOST, ALLOWED_HOST), (ALLOWED_HOST, API_HOST)):
        assert await _send_and_get_status((b"host", first), (b"host", second)) == 400
    assert await _send_and_get_status() == 400
    assert await _send_and_get_status((b"host", ALLOWED_HOST), (b"e2b-sandbox-id", b"other")) == 403
    assert (
        await _send_and_get_status((b"host", ALLOWED_HOST), (b"e2b-sandbox-id", b"any"), path="/sandboxes/any") == 403
    ), "the API path must be denied"
    assert await _send_and_get_status((b"host", b"any.x.test"), allowed=b"any.x.test") == 403, (
        "the API must be denied under another name too"
    )
    assert await _send_and_get_status((b"host", API_HOST), path="/sandboxes", allowed=API_HOST) == 200
