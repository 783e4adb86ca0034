"""Tokens of a GitHub App's installation: made when needed, shared, renewed, and for one repository only."""

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


def new_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@functools.cache
def one_key() -> str:
    return new_key()


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
def api(clock: HurriedClock) -> Iterator[Scripted]:
    with Scripted(clock) as made:
        yield made


@pytest.fixture
def installation(api: Scripted, clock: HurriedClock) -> InstallationTokens:
    return of(api, clock)


def of(api: Scripted, clock: HurriedClock, key: str | None = None) -> InstallationTokens:
    private = Secret(key or one_key())
    return InstallationTokens(
        api.url, app_id="12", installation_id="34", private_key=private, repository="site", clock=clock
    )


def issue(api: Scripted, clock: HurriedClock, token: str, seconds: float = 3600, **more: object) -> None:
    ends = datetime.fromtimestamp(clock.now() + seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    api.answer(201, {"token": token, "expires_at": ends, **more})


async def test_one_is_made_for_all_who_ask_at_once(
    installation: InstallationTokens, api: Scripted, clock: HurriedClock
) -> None:
    issue(api, clock, "ghs_first", permissions={"contents": "write"})
    tokens = await asyncio.gather(*(installation.get_token() for _ in range(20)))
    assert {token.reveal() for token in tokens} == {"ghs_first"}
    (asked,) = api.asked
    assert (asked.method, asked.path) == ("POST", "/v3/app/installations/34/access_tokens")
    assert asked.body == {"repositories": ["site"]}
    assert asked.headers["authorization"].count(".") == 2  # a signed statement, not a token
    assert await installation.get_permissions() == {"contents": "write"}


async def test_it_is_used_until_five_minutes_before_its_end(
    installation: InstallationTokens, api: Scripted, clock: HurriedClock
) -> None:
    issue(api, clock, "ghs_first")
    await installation.get_token()
    clock.pass_(3600 - 301)
    assert (await installation.get_token()).reveal() == "ghs_first"
    issue(api, clock, "ghs_second")
    clock.pass_(2)
    assert (await installation.get_token()).reveal() == "ghs_second"


async def test_one_that_is_not_accepted_any_more_is_made_anew(
    installation: InstallationTokens, api: Scripted, clock: HurriedClock
) -> None:
    issue(api, clock, "ghs_first")
    line = GitHubConnection(api.url, installation, clock, ResponseCache(), "k")
    api.answer(401, {"message": "Bad credentials"})
    issue(api, clock, "ghs_second")
    api.answer(200, {"id": 1})
    assert (await line.request("GET", "/repos/acme/site", max_wait_s=0)).json == {"id": 1}
    assert api.asked[-1].headers["authorization"] == "Bearer ghs_second"
    await line.close()


async def test_faults_are_repeated(installation: InstallationTokens, api: Scripted, clock: HurriedClock) -> None:
    api.answer(502)
    issue(api, clock, "ghs_first")
    assert (await installation.get_token()).reveal() == "ghs_first"


async def test_who_has_another_key_of_the_same_app_has_another_signature(api: Scripted, clock: HurriedClock) -> None:
    issue(api, clock, "ghs_owner")
    await of(api, clock).get_token()
    api.answer(401, {"message": "A JSON web token could not be decoded"})
    with pytest.raises(ForgeUnauthorizedError, match="its id and private key do not match"):
        await of(api, clock, new_key()).get_token()
    assert api.asked[0].headers["authorization"] != api.asked[1].headers["authorization"]


@pytest.mark.parametrize(
    ("status", "said", "kind", "words"),
    [
        (404, "Integration not found", ForgeNotFoundError, "has no installation 34"),
        (422, "There is at least one repository that does not exist", ForgeNotFoundError, "has no access to site"),
    ],
)
async def test_what_is_wrong_with_the_installation(
    installation: InstallationTokens, api: Scripted, status: int, said: str, kind: type[Exception], words: str
) -> None:
    api.answer(status, {"message": said})
    with pytest.raises(kind, match=words):
        await installation.get_token()


async def test_a_key_that_is_none(api: Scripted, clock: HurriedClock) -> None:
    with pytest.raises(ForgeUnauthorizedError, match="not an RSA key") as refused:
        await of(api, clock, "-----BEGIN RSA PRIVATE KEY-----\nplanted\n-----END RSA PRIVATE KEY-----").get_token()
    assert refused.value.__cause__ is None
    assert api.asked == []


async def test_an_answer_without_a_token(installation: InstallationTokens, api: Scripted) -> None:
    api.answer(201, {"expires_at": "soon"})
    with pytest.raises(ForgeUnreachableError, match="contains no token"):
        await installation.get_token()


async def test_a_pull_request_is_opened_by_an_app(double: GitHub, site: Repository) -> None:
    app = double.app("acme")
    source = InstallationTokens(
        double.api_url,
        app_id=str(app.app_id),
        installation_id=str(app.installation_id),
        private_key=Secret(app.private_key),
        repository=site.name,
        clock=SystemClock(),
    )
    line = GitHubConnection(double.api_url, source, SystemClock(), ResponseCache(), "k")
    github = GitHubRepository(line, site.slug, SystemClock(), max_wait_s=10)
    allowed = await github.get_permissions()
    assert (allowed.push, allowed.pull_requests, allowed.default_branch) == (True, True, "main")
    pull, made = await github.open_or_update(PullDraft("task-1", "main", "feat: add a"))
    assert made
    found = await github.find("task-1")
    assert found is not None
    assert found.number == pull.number
    first = await source.get_token()
    source.discard(first)
    assert await source.get_token() != first
    await line.close()
