"""A full machine and a full disk say so, and what was there goes on."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2b import NotEnoughSpaceException, RateLimitException, Sandbox

from .engine import Engine


@pytest.fixture(scope="module")
def small() -> Iterator[Engine]:
    """An engine with room for two sandboxes of 64 MB disk."""
    engine = Engine({"MAX_SANDBOXES": "2", "DEFAULT_DISK_MB": "64", "POOL_SIZE": "0"})
    engine.start()
    yield engine
    assert not (left := engine.stop()), f"the engine left behind: {left}"


@pytest.fixture
def room(small: Engine) -> dict[str, str]:
    """Where the small, empty engine is, as options for the SDK."""
    small.clear()
    return {"api_url": small.url, "sandbox_url": small.url, "api_key": small.key}


def test_a_full_machine_is_429_and_says_what_is_full(room: dict[str, str], small: Engine) -> None:
    one, two = (Sandbox.create(**room) for _ in range(2))  # type: ignore[arg-type]
    with small.client() as api:
        answer = api.post("/v2/sandboxes", json={"templateID": "base"})
        assert answer.status_code == 429
        assert answer.json()["code"] == 429
        assert "sandbox" in answer.json()["message"].lower()
    with pytest.raises(RateLimitException):
        Sandbox.create(**room, retries=0)  # type: ignore[arg-type]
    assert one.commands.run("echo still here").stdout == "still here\n"
    two.kill()
    Sandbox.create(**room)  # type: ignore[arg-type]


def test_forks_that_do_not_fit(room: dict[str, str]) -> None:
    sandbox = Sandbox.create(**room)  # type: ignore[arg-type]
    results = sandbox.fork(count=3)
    started = [result for result in results if isinstance(result, Sandbox)]
    refused = [result for result in results if isinstance(result, RateLimitException)]
    assert (len(started), len(refused)) == (1, 2)
    assert sandbox.is_running()


def test_a_full_disk_is_507(room: dict[str, str]) -> None:
    sandbox = Sandbox.create(**room)  # type: ignore[arg-type]
    sandbox.files.write("small.txt", "fits")
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("large.bin", b"x" * 100_000_000)
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("large.bin", b"x" * 100_000_000, use_octet_stream=True)
    assert sandbox.files.read("small.txt") == "fits"
    sandbox.files.remove("large.bin")
    sandbox.files.write("small.txt", "fits again")
    assert sandbox.files.read("small.txt") == "fits again"


def test_a_command_that_fills_the_disk_hurts_only_itself(room: dict[str, str], small: Engine) -> None:
    sandbox, other = (Sandbox.create(**room) for _ in range(2))  # type: ignore[arg-type]
    told = sandbox.commands.run("head -c 200000000 /dev/urandom 2>&1 >fill; rm fill; echo freed")
    assert "No space left" in told.stdout or "quota" in told.stdout.lower()
    assert told.stdout.endswith("freed\n")
    other.files.write("mine", "unharmed")
    assert httpx.get(f"{small.url}/health").status_code == 204
