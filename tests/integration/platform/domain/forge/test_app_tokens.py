"""Installation tokens of a GitHub App: created when needed, shared, renewed, and limited to one repository."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sandyard.kit.clock import SystemClock
from sandyard.kit.secret import Secret
from sandyard.platform.domain.forge.app_tokens import InstallationTokens
from sandyard.platform.domain.forge.errors import ForgeNotFoundError, ForgeUnauthorizedError, ForgeUnreachableError
from sandyard.platform.domain.forge.github import GitHubRepository
from sandyard.platform.domain.forge.github_connection import GitHubConnection, ResponseCache
from sandyard.platform.domain.forge.model import PullDraft
from tests.forge import GitHub
from tests.forge.repositories import Repository
from tests.unit.platform.domain.forge.clocks import HurriedClock
from tests.unit.platform.domain.forge.scripted import Scripted


def create_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@functools.cache
def get_shared_key() -> str:
    return create_key()


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
def api(clock: HurriedClock) -> Iterator[Scripted]:
    with Scripted(clock) as opened:
        yield opened


@pytest.fixture
def installation(api: Scripted, clock: HurriedClock) -> InstallationTokens:
    return create_tokens(api, clock)


def create_tokens(api: Scripted, clock: HurriedClock, key: str | None = None) -> InstallationTokens:
    private = Secret(key or get_shared_key())
    return InstallationTokens(
        api.url, app_id="12", installation_id="34", private_key=private, repository="site", clock=clock
    )


def issue(api: Scripted, clock: HurriedClock, token: str, seconds: float = 3600, **more: object) -> None:
    expires = (
        datetime.fromtimestamp(clock.now() + seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
    api.answer(201, {"token": token, "expires_at": expires, **more})


async def test_concurrent_callers_share_one_token(
    installation: InstallationTokens, api: Scripted, clock: HurriedClock
) -> None:
    issue(api, clock, "ghs_first", permissions={"contents": "write"})
    tokens = await asyncio.gather(*(installation.get_token() for _ in range(20)))
    assert {token.reveal() for token in tokens} == {"ghs_first"}
    (request,) = api.requests
    assert (request.method, request.path) == ("POST", "/v3/app/installations/34/access_tokens")
    assert request.body == {"repositories": ["site"]}
    assert request.headers["authorization"].count(".") == 2  # a signed JWT, not a token
    assert await installation.get_permissions() == {"contents": "write"}


async def test_a_token_is_used_until_five_minutes_before_it_expires(
    installation: InstallationTokens, api: Scripted, clock: HurriedClock
) -> None:
    issue(api, clock, "ghs_first")
    await installation.get_token()
    clock.pass_(3600 - 301)
    assert (await installation.get_token()).reveal() == "ghs_first"
    issue(api, clock, "ghs_second")
    clock.pass_(2)
    assert (await installation.get_token()).reveal() == "ghs_second"


async def test_a_token_that_is_no_longer_accepted_is_replaced(
    installation: InstallationTokens, api: Scripted, clock: HurriedClock
) -> None:
    issue(api, clock, "ghs_first")
    connection = GitHubConnection(api.url, installation, clock, ResponseCache(), "k")
    api.answer(401, {"message": "Bad credentials"})
    issue(api, clock, "ghs_second")
    api.answer(200, {"id": 1})
    assert (await connection.request("GET", "/repos/acme/site", max_wait_s=0)).json == {"id": 1}
    assert api.requests[-1].headers["authorization"] == "Bearer ghs_second"
    await connection.close()


async def test_a_server_error_is_retried(installation: InstallationTokens, api: Scripted, clock: HurriedClock) -> None:
    api.answer(502)
    issue(api, clock, "ghs_first")
    assert (await installation.get_token()).reveal() == "ghs_first"


async def test_another_private_key_of_the_app_gives_another_signature(api: Scripted, clock: HurriedClock) -> None:
    issue(api, clock, "ghs_owner")
    await create_tokens(api, clock).get_token()
    api.answer(401, {"message": "A JSON web token could not be decoded"})
    with pytest.raises(ForgeUnauthorizedError, match="its id and private key do not match"):
        await create_tokens(api, clock, create_key()).get_token()
    assert api.requests[0].headers["authorization"] != api.requests[1].headers["authorization"]


@pytest.mark.parametrize(
    ("status", "message", "kind", "words"),
    [
        (404, "Integration not found", ForgeNotFoundError, "has no installation 34"),
        (422, "There is at least one repository that does not exist", ForgeNotFoundError, "has no access to site"),
    ],
)
async def test_errors_of_the_installation_are_explained(
    installation: InstallationTokens, api: Scripted, status: int, message: str, kind: type[Exception], words: str
) -> None:
    api.answer(status, {"message": message})
    with pytest.raises(kind, match=words):
        await installation.get_token()


async def test_an_invalid_private_key_is_rejected(api: Scripted, clock: HurriedClock) -> None:
    with pytest.raises(ForgeUnauthorizedError, match="not an RSA key") as refused:
        await create_tokens(
            api, clock, "-----BEGIN RSA PRIVATE KEY-----\nplanted\n-----END RSA PRIVATE KEY-----"
        ).get_token()
    assert refused.value.__cause__ is None
    assert api.requests == []


async def test_a_response_without_a_token_is_rejected(installation: InstallationTokens, api: Scripted) -> None:
    api.answer(201, {"expires_at": "soon"})
    with pytest.raises(ForgeUnreachableError, match="contains no token"):
        await installation.get_token()


async def test_an_app_can_open_a_pull_request(double: GitHub, site: Repository) -> None:
    app = double.app("acme")
    source = InstallationTokens(
        double.api_url,
        app_id=str(app.app_id),
        installation_id=str(app.installation_id),
        private_key=Secret(app.private_key),
        repository=site.name,
        clock=SystemClock(),
    )
    connection = GitHubConnection(double.api_url, source, SystemClock(), ResponseCache(), "k")
    github = GitHubRepository(connection, site.slug, SystemClock(), max_wait_s=10)
    allowed = await github.get_permissions()
    assert (allowed.push, allowed.pull_requests, allowed.default_branch) == (True, True, "main")
    pull, created = await github.open_or_update(PullDraft("task-1", "main", "feat: add a"))
    assert created
    found = await github.find("task-1")
    assert found is not None
    assert found.number == pull.number
    first = await source.get_token()
    source.discard(first)
    assert await source.get_token() != first
    await connection.close()
