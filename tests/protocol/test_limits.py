"""Test that a full machine and a full disk are reported, and that existing sandboxes keep working."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2b import NotEnoughSpaceException, RateLimitException, Sandbox

from tests.harness.engine import Engine


@pytest.fixture(scope="module")
def small_engine() -> Iterator[Engine]:
    """An engine limited to two sandboxes with 64 MB of disk each."""
    engine = Engine({"MAX_SANDBOXES": "2", "DEFAULT_DISK_MB": "64", "POOL_SIZE": "0"})
    engine.start()
    yield engine
    assert not (left := engine.stop()), f"the engine left behind: {left}"


@pytest.fixture
def options(small_engine: Engine) -> dict[str, str]:
    """SDK options for the small engine, after removing its sandboxes."""
    small_engine.clear()
    return {"api_url": small_engine.url, "sandbox_url": small_engine.url, "api_key": small_engine.key}


def test_creating_too_many_sandboxes_returns_429(options: dict[str, str], small_engine: Engine) -> None:
    one, two = (Sandbox.create(**options) for _ in range(2))  # type: ignore[arg-type]
    with small_engine.client() as api:
        response = api.post("/v2/sandboxes", json={"templateID": "base"})
        assert response.status_code == 429
        assert response.json()["code"] == 429
        assert "sandbox" in response.json()["message"].lower()
    with pytest.raises(RateLimitException):
        Sandbox.create(**options, retries=0)  # type: ignore[arg-type]
    assert one.commands.run("echo still here").stdout == "still here\n"
    two.kill()
    Sandbox.create(**options)  # type: ignore[arg-type]


def test_forks_beyond_the_limit_are_refused(options: dict[str, str]) -> None:
    sandbox = Sandbox.create(**options)  # type: ignore[arg-type]
    results = sandbox.fork(count=3)
    started = [result for result in results if isinstance(result, Sandbox)]
    refused = [result for result in results if isinstance(result, RateLimitException)]
    assert (len(started), len(refused)) == (1, 2)
    assert sandbox.is_running()


def test_writing_to_a_full_disk_returns_507(options: dict[str, str]) -> None:
    sandbox = Sandbox.create(**options)  # type: ignore[arg-type]
    sandbox.files.write("small.txt", "fits")
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("large.bin", b"x" * 100_000_000)
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("large.bin", b"x" * 100_000_000, use_octet_stream=True)
    assert sandbox.files.read("small.txt") == "fits"
    sandbox.files.remove("large.bin")
    sandbox.files.write("small.txt", "fits again")
    assert sandbox.files.read("small.txt") == "fits again"


def test_a_command_that_fills_the_disk_does_not_affect_other_sandboxes(
    options: dict[str, str], small_engine: Engine
) -> None:
    sandbox, other = (Sandbox.create(**options) for _ in range(2))  # type: ignore[arg-type]
    result = sandbox.commands.run("head -c 200000000 /dev/urandom 2>&1 >fill; rm fill; echo freed")
    assert "No space left" in result.stdout or "quota" in result.stdout.lower()
    assert result.stdout.endswith("freed\n")
    other.files.write("mine", "unharmed")
    assert httpx.get(f"{small_engine.url}/health").status_code == 204
