"""Which credential opens what, and the connection test, against the forge of tests/forge."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import NotFoundError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Project
from sandyard.platform.domain.forge.access import Access
from sandyard.platform.domain.forge.connection_test import ConnectionTests
from sandyard.platform.domain.forge.errors import (
    ForgeNotFoundError,
    ForgeRateLimitedError,
    ForgeUnauthorizedError,
    ForgeUnsupportedError,
)
from sandyard.platform.domain.forge.model import PullDraft
from sandyard.platform.domain.projects.credentials import AppKey, Credentials
from sandyard.platform.domain.projects.model import ForgeSettings, ProjectSettings
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.mirror import Mirrors
from tests.forge import GitHub
from tests.forge.repositories import Repository
from tests.unit.platform.world import Person, World, opened


@dataclass
class Office:
    world: World
    credentials: Credentials
    access: Access
    tests: ConnectionTests
    ada: Person

    async def project(self, repository: str | None, *, base_branch: str | None = None, **forge: object) -> Project:
        settings = ProjectSettings(forge=ForgeSettings.model_validate(forge))
        return await self.world.projects.create(
            self.ada.principal, "p", repository=repository, base_branch=base_branch, settings=settings
        )

    async def put(self, project: Project, **given: object) -> None:
        await self.credentials.put(self.ada.principal, project.id, **given)  # type: ignore[arg-type]

    async def findings(self, project: Project) -> dict[str, tuple[bool, str]]:
        found = await self.tests.check(self.ada.principal, project.id)
        assert len({finding.what for finding in found}) == len(found)
        return {finding.what: (finding.ok, finding.detail) for finding in found}

    async def wrong_fields(self, project: Project) -> dict[str, str | None]:
        found = await self.tests.check(self.ada.principal, project.id)
        return {finding.what: finding.field for finding in found if not finding.ok}


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with opened(tmp_path) as world:
        credentials = Credentials(world.database, world.projects, world.vault, world.clock)
        mirrors = Mirrors(Git(world.settings.git_dir, timeout_s=60), world.settings)
        access = Access(credentials, world.projects, mirrors, SystemClock())
        tests = ConnectionTests(access, credentials, world.projects, mirrors)
        yield Office(world, credentials, access, tests, await world.person("ada", "admin"))
        await access.close()


def ssh_key() -> Secret:
    made = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return Secret(made.decode())


async def test_a_plain_remote_has_no_pull_requests(office: Office) -> None:
    project = await office.project("https://git.example.org/acme/site.git")
    with pytest.raises(ForgeUnsupportedError, match="plain Git remote"):
        await office.access.github(project)
    assert await office.access.get_budget(project) is None


class TestCredential:
    async def test_over_http_it_is_the_token_and_its_name(self, office: Office) -> None:
        project = await office.project("https://git.example.org/acme/site.git")
        assert await office.access.credential(project) is None
        await office.put(project, ssh_key=ssh_key())
        assert await office.access.credential(project) is None
        await office.put(project, token=Secret("glpat-0123456789"), username="ada")
        found = await office.access.credential(project)
        assert found is not None
        assert (found.token, found.username, found.ssh_key) == (Secret("glpat-0123456789"), "ada", None)
        assert "glpat" not in repr(found)

    async def test_over_ssh_it_is_the_key_and_never_the_token(self, office: Office) -> None:
        project = await office.project("git@github.com:acme/site.git")
        await office.put(project, token=Secret("ghp_0123456789abcdef"))
        assert await office.access.credential(project) is None
        await office.put(project, ssh_key=ssh_key())
        found = await office.access.credential(project)
        assert found is not None
        assert found.token is None
        assert found.ssh_key is not None

    async def test_a_local_path_needs_none(self, office: Office) -> None:
        project = await office.project("/srv/git/site.git")
        await office.put(project, token=Secret("ghp_0123456789abcdef"))
        assert await office.access.credential(project) is None

    async def test_an_app_gives_git_a_token_which_all_of_the_project_share(
        self, office: Office, double: GitHub, site: Repository
    ) -> None:
        app = double.app("acme")
        project = await office.project(site.url, apiUrl=double.api_url)
        await office.put(project, app=AppKey(str(app.app_id), str(app.installation_id), Secret(app.private_key)))
        before = len(double.calls)
        found = await asyncio.gather(*(office.access.credential(project) for _ in range(10)))
        tokens = {credential.token.reveal() for credential in found if credential and credential.token}
        assert len(tokens) == 1
        assert tokens.pop().startswith("ghs_")
        assert found[0] is not None
        assert found[0].username == "x-access-token"
        _, made = await (await office.access.github(project)).open_or_update(PullDraft("task-1", "main", "feat: a"))
        assert made
        assert sum(call.path.endswith("/access_tokens") for call in double.calls[before:]) == 1

    async def test_an_app_that_does_not_reach_the_repository(
        self, office: Office, double: GitHub, site: Repository
    ) -> None:
        app = double.app("elsewhere")
        project = await office.project(site.url, apiUrl=double.api_url)
        await office.put(project, app=AppKey(str(app.app_id), str(app.installation_id), Secret(app.private_key)))
        with pytest.raises(ForgeNotFoundError, match="has no access to"):
            await office.access.credential(project)


async def test_a_new_token_counts_at_once(office: Office, double: GitHub, site: Repository) -> None:
    old, new = double.tokens.make("bot"), double.tokens.make("bot")
    project = await office.project(site.url, apiUrl=double.api_url)
    await office.put(project, token=Secret(old.text))
    await (await office.access.github(project)).get_permissions()
    old.revoke()
    with pytest.raises(ForgeUnauthorizedError):
        await (await office.access.github(project)).get_permissions()
    await office.put(project, token=Secret(new.text))
    await (await office.access.github(project)).get_permissions()


async def test_the_budget_is_the_tokens_and_not_the_projects(office: Office, double: GitHub, site: Repository) -> None:
    projects = [await office.project(site.url, apiUrl=double.api_url) for _ in range(3)]
    token, other = double.tokens.make("bot").text, double.tokens.make("bot").text
    for project, text in zip(projects, (token, token, other), strict=True):
        await office.put(project, token=Secret(text))
    await (await office.access.github(projects[0])).get_permissions()
    first, same, none = [await office.access.get_budget(project) for project in projects]
    assert first is not None
    assert first == same
    assert none is None


async def test_lines_that_nobody_uses_are_closed(office: Office, double: GitHub, site: Repository) -> None:
    project = await office.project(site.url, apiUrl=double.api_url)
    first = double.tokens.make("bot").text
    for text in (first, *(f"ghp_{number:020}" for number in range(70))):
        await office.put(project, token=Secret(text))
        await office.access.github(project)
    assert len(office.access._connections) == 64
    await office.put(project, token=Secret(first))
    await (await office.access.github(project)).get_permissions()  # it is opened again


class TestCheck:
    async def test_all_is_well(self, office: Office, double: GitHub, site: Repository) -> None:
        project = await office.project(site.url, base_branch="main", apiUrl=double.api_url)
        await office.put(project, token=Secret(double.tokens.make("bot").text), webhook_secret=Secret("s" * 32))
        found = await office.findings(project)
        assert list(found) == ["credential", "api", "push", "budget", "webhook", "repository", "base_branch"]
        assert all(ok for ok, _ in found.values()), found
        assert found["repository"][1] == f"{site.url} responds and has 2 branches."
        assert found["push"][1] == f"The credential can push to {site.slug} and open pull requests."
        assert "of 5000 requests are left" in found["budget"][1]
        assert "is set" in found["webhook"][1]

    async def test_nothing_is_given(self, office: Office, double: GitHub, site: Repository) -> None:
        project = await office.project(site.url, apiUrl=double.api_url)
        found = await office.findings(project)
        assert [ok for ok, _ in found.values()] == [False, False, False]
        assert "no token and no GitHub App" in found["credential"][1]
        assert "the token's access" in found["api"][1]
        assert await office.wrong_fields(project) == {
            "credential": "token",
            "api": "apiUrl",
            "repository": "token",
        }

    async def test_a_token_that_may_only_read(self, office: Office, double: GitHub, site: Repository) -> None:
        project = await office.project(site.url, base_branch="gone", apiUrl=double.api_url)
        await office.put(project, token=Secret(double.tokens.make("bot", write=False).text))
        found = await office.findings(project)
        assert {what for what, (ok, _) in found.items() if not ok} == {"push", "base_branch"}
        assert "'Contents: read and write'" in found["push"][1]
        assert found["base_branch"][1] == "There is no branch gone. Available: main, task-1."
        assert await office.wrong_fields(project) == {"push": "token", "base_branch": "baseBranch"}
        assert "No webhook secret" in found["webhook"][1]

    async def test_an_expired_token(self, office: Office, double: GitHub, site: Repository) -> None:
        token = double.tokens.make("bot")
        project = await office.project(site.url, apiUrl=double.api_url)
        await office.put(project, token=Secret(token.text))
        token.expire()
        found = await office.findings(project)
        assert (found["api"][0], found["repository"][0]) == (False, False)
        assert "expired, revoked or mistyped" in found["api"][1]
        assert token.text not in str(found)
        assert found["repository"][1].endswith("or may not do this. Enter a new one.")
        assert await office.wrong_fields(project) == {"api": "token", "repository": "token"}

    async def test_a_used_up_limit_is_said_and_not_waited_for(
        self, office: Office, double: GitHub, site: Repository
    ) -> None:
        project = await office.project(site.url, apiUrl=double.api_url)
        await office.put(project, token=Secret(double.tokens.make("bot").text))
        double.limit.exhaust(reset_in_s=1800)
        try:
            async with asyncio.timeout(20):
                found = await office.findings(project)
            with pytest.raises(ForgeRateLimitedError):
                await (await office.access.github(project)).get_permissions()
        finally:
            double.limit.exhaust(reset_in_s=-1)
        assert (found["api"][0], found["repository"][0]) == (False, True)
        assert "is rate-limiting this credential until" in found["api"][1]

    async def test_a_token_that_ends_soon_with_a_budget_that_runs_low(
        self, office: Office, double: GitHub, site: Repository
    ) -> None:
        project = await office.project(site.url, apiUrl=double.api_url)
        await office.put(project, token=Secret(double.tokens.make("bot").text))
        said = {"GitHub-Authentication-Token-Expiration": "2026-12-31 00:00:00 UTC"}
        said |= {"X-RateLimit-Remaining": "42", "X-RateLimit-Reset": str(int(time.time()) + 600)}
        archived = b'{"permissions": {"push": true}, "archived": true, "default_branch": "main"}'
        double.faults.answer(200, on="api", path=f"/repos/{site.slug}", headers=said, body=archived)
        found = await office.findings(project)
        assert found["api"] == (True, "GitHub responds. The token expires at 2026-12-31 00:00:00 UTC.")
        assert found["push"] == (False, f"The repository {site.slug} is archived and read-only.")
        assert found["budget"][0] is False
        assert "Only 42 of 5000 requests are left" in found["budget"][1]

    async def test_an_app_that_may_not_open_pull_requests(
        self, office: Office, double: GitHub, site: Repository
    ) -> None:
        app = double.app("acme", permissions={"contents": "write"})
        project = await office.project(site.url, apiUrl=double.api_url)
        await office.put(project, app=AppKey(str(app.app_id), str(app.installation_id), Secret(app.private_key)))
        found = await office.findings(project)
        assert {what for what, (ok, _) in found.items() if not ok} == {"push"}
        assert "It needs 'Pull requests: read and write'" in found["push"][1]
        assert found["credential"][1] == "A GitHub App is stored."

    async def test_a_plain_remote(self, office: Office, double: GitHub, site: Repository) -> None:
        project = await office.project(site.url)
        await office.put(project, token=Secret(double.tokens.make("bot").text))
        found = await office.findings(project)
        assert list(found) == ["credential", "forge", "repository", "base_branch"]
        assert all(ok for ok, _ in found.values()), found

    async def test_a_project_without_a_repository(self, office: Office) -> None:
        found = await office.findings(await office.project(None))
        assert found == {"repository": (False, "The project has no repository. Add one in its settings.")}

    async def test_only_who_sees_the_project_may_ask(self, office: Office, site: Repository) -> None:
        project = await office.project(site.url)
        eve = await office.world.person("eve")
        with pytest.raises(NotFoundError):
            await office.tests.check(eve.principal, project.id)
