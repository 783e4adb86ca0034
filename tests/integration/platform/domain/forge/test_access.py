"""Which credential is used for what, and the connection test, against the forge of tests/forge."""

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
from sandyard.platform.domain.forge.access import ForgeAccess
from sandyard.platform.domain.forge.connection_test import ConnectionTests
from sandyard.platform.domain.forge.errors import (
    ConnectionTestFailedError,
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
from tests.unit.platform.world import Person, World, open_world


@dataclass
class AccessHarness:
    world: World
    credentials: Credentials
    access: ForgeAccess
    tests: ConnectionTests
    ada: Person

    async def create_project(
        self, repository: str | None, *, base_branch: str | None = None, **forge: object
    ) -> Project:
        settings = ProjectSettings(forge=ForgeSettings.model_validate(forge))
        return await self.world.projects.create(
            self.ada.principal, "p", repository=repository, base_branch=base_branch, settings=settings
        )

    async def put_credentials(self, project: Project, **credentials: object) -> None:
        await self.credentials.put(self.ada.principal, project.id, **credentials)  # type: ignore[arg-type]

    async def get_findings(self, project: Project) -> dict[str, tuple[bool, str]]:
        found = await self.tests.check(self.ada.principal, project.id)
        assert len({finding.what for finding in found}) == len(found)
        return {finding.what: (finding.ok, finding.detail) for finding in found}

    async def get_failed_fields(self, project: Project) -> dict[str, str | None]:
        found = await self.tests.check(self.ada.principal, project.id)
        return {finding.what: finding.field for finding in found if not finding.ok}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[AccessHarness]:
    async with open_world(tmp_path) as world:
        credentials = Credentials(world.database, world.projects, world.vault, world.clock)
        mirrors = Mirrors(Git(world.settings.git_dir, timeout_s=60), world.settings)
        access = ForgeAccess(credentials, world.projects, mirrors, SystemClock())
        tests = ConnectionTests(access, credentials, world.projects, mirrors)
        yield AccessHarness(world, credentials, access, tests, await world.create_person("ada", "admin"))
        await access.close()


def create_ssh_key() -> Secret:
    encoded = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return Secret(encoded.decode())


async def test_a_plain_remote_has_no_pull_requests(harness: AccessHarness) -> None:
    project = await harness.create_project("https://git.example.org/acme/site.git")
    with pytest.raises(ForgeUnsupportedError, match="plain Git remote"):
        await harness.access.get_github_repository(project)
    assert await harness.access.get_budget(project) is None


class TestCredential:
    async def test_http_uses_the_token_and_its_username(self, harness: AccessHarness) -> None:
        project = await harness.create_project("https://git.example.org/acme/site.git")
        assert await harness.access.get_credential(project) is None
        await harness.put_credentials(project, ssh_key=create_ssh_key())
        assert await harness.access.get_credential(project) is None
        await harness.put_credentials(project, token=Secret("glpat-0123456789"), username="ada")
        found = await harness.access.get_credential(project)
        assert found is not None
        assert (found.token, found.username, found.ssh_key) == (Secret("glpat-0123456789"), "ada", None)
        assert "glpat" not in repr(found)

    async def test_ssh_uses_the_key_and_never_the_token(self, harness: AccessHarness) -> None:
        project = await harness.create_project("git@github.com:acme/site.git")
        await harness.put_credentials(project, token=Secret("ghp_0123456789abcdef"))
        assert await harness.access.get_credential(project) is None
        await harness.put_credentials(project, ssh_key=create_ssh_key())
        found = await harness.access.get_credential(project)
        assert found is not None
        assert found.token is None
        assert found.ssh_key is not None

    async def test_a_local_path_needs_no_credential(self, harness: AccessHarness) -> None:
        project = await harness.create_project("/srv/git/site.git")
        await harness.put_credentials(project, token=Secret("ghp_0123456789abcdef"))
        assert await harness.access.get_credential(project) is None

    async def test_an_app_gives_git_one_token_for_all_callers_of_the_project(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        app = double.app("acme")
        project = await harness.create_project(site.url, apiUrl=double.api_url)
        await harness.put_credentials(
            project, app=AppKey(str(app.app_id), str(app.installation_id), Secret(app.private_key))
        )
        before = len(double.calls)
        found = await asyncio.gather(*(harness.access.get_credential(project) for _ in range(10)))
        tokens = {credential.token.reveal() for credential in found if credential and credential.token}
        assert len(tokens) == 1
        assert tokens.pop().startswith("ghs_")
        assert found[0] is not None
        assert found[0].username == "x-access-token"
        _, created = await (await harness.access.get_github_repository(project)).open_or_update(
            PullDraft("task-1", "main", "feat: a")
        )
        assert created
        assert sum(call.path.endswith("/access_tokens") for call in double.calls[before:]) == 1

    async def test_an_app_without_access_to_the_repository_is_reported(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        app = double.app("elsewhere")
        project = await harness.create_project(site.url, apiUrl=double.api_url)
        await harness.put_credentials(
            project, app=AppKey(str(app.app_id), str(app.installation_id), Secret(app.private_key))
        )
        with pytest.raises(ForgeNotFoundError, match="has no access to"):
            await harness.access.get_credential(project)


async def test_a_new_token_is_used_immediately(harness: AccessHarness, double: GitHub, site: Repository) -> None:
    old, new = double.tokens.make("bot"), double.tokens.make("bot")
    project = await harness.create_project(site.url, apiUrl=double.api_url)
    await harness.put_credentials(project, token=Secret(old.text))
    await (await harness.access.get_github_repository(project)).get_permissions()
    old.revoke()
    with pytest.raises(ForgeUnauthorizedError):
        await (await harness.access.get_github_repository(project)).get_permissions()
    await harness.put_credentials(project, token=Secret(new.text))
    await (await harness.access.get_github_repository(project)).get_permissions()


async def test_the_rate_limit_budget_belongs_to_the_token(
    harness: AccessHarness, double: GitHub, site: Repository
) -> None:
    projects = [await harness.create_project(site.url, apiUrl=double.api_url) for _ in range(3)]
    token, other = double.tokens.make("bot").text, double.tokens.make("bot").text
    for project, text in zip(projects, (token, token, other), strict=True):
        await harness.put_credentials(project, token=Secret(text))
    await (await harness.access.get_github_repository(projects[0])).get_permissions()
    first, same, none = [await harness.access.get_budget(project) for project in projects]
    assert first is not None
    assert first == same
    assert none is None


async def test_unused_connections_are_closed(harness: AccessHarness, double: GitHub, site: Repository) -> None:
    project = await harness.create_project(site.url, apiUrl=double.api_url)
    first = double.tokens.make("bot").text
    for text in (first, *(f"ghp_{number:020}" for number in range(70))):
        await harness.put_credentials(project, token=Secret(text))
        await harness.access.get_github_repository(project)
    assert len(harness.access.connections) == 64
    await harness.put_credentials(project, token=Secret(first))
    await (await harness.access.get_github_repository(project)).get_permissions()  # the connection is opened again


class TestCheck:
    async def test_a_working_connection_passes(self, harness: AccessHarness, double: GitHub, site: Repository) -> None:
        project = await harness.create_project(site.url, base_branch="main", apiUrl=double.api_url)
        await harness.put_credentials(
            project, token=Secret(double.tokens.make("bot").text), webhook_secret=Secret("s" * 32)
        )
        found = await harness.get_findings(project)
        assert list(found) == ["credential", "api", "push", "budget", "webhook", "repository", "base_branch"]
        assert all(ok for ok, _ in found.values()), found
        assert found["repository"][1] == f"{site.url} responds and has 2 branches."
        assert found["push"][1] == f"The credential can push to {site.slug} and open pull requests."
        assert "of 5000 requests are left" in found["budget"][1]
        assert "is set" in found["webhook"][1]

    async def test_missing_credentials_are_reported(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        project = await harness.create_project(site.url, apiUrl=double.api_url)
        found = await harness.get_findings(project)
        assert [ok for ok, _ in found.values()] == [False, False, False]
        assert "no token and no GitHub App" in found["credential"][1]
        assert "the token's access" in found["api"][1]
        assert await harness.get_failed_fields(project) == {
            "credential": "token",
            "api": "apiUrl",
            "repository": "token",
        }

    async def test_a_read_only_token_fails_the_push_check(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        project = await harness.create_project(site.url, base_branch="gone", apiUrl=double.api_url)
        await harness.put_credentials(project, token=Secret(double.tokens.make("bot", write=False).text))
        found = await harness.get_findings(project)
        assert {what for what, (ok, _) in found.items() if not ok} == {"push", "base_branch"}
        assert "'Contents: read and write'" in found["push"][1]
        assert found["base_branch"][1] == "There is no branch gone. Available: main, task-1."
        assert await harness.get_failed_fields(project) == {"push": "token", "base_branch": "baseBranch"}
        assert "No webhook secret" in found["webhook"][1]

    async def test_an_expired_token_is_reported(self, harness: AccessHarness, double: GitHub, site: Repository) -> None:
        token = double.tokens.make("bot")
        project = await harness.create_project(site.url, apiUrl=double.api_url)
        await harness.put_credentials(project, token=Secret(token.text))
        token.expire()
        found = await harness.get_findings(project)
        assert (found["api"][0], found["repository"][0]) == (False, False)
        assert "expired, revoked or mistyped" in found["api"][1]
        assert token.text not in str(found)
        assert found["repository"][1].endswith("or lacks permission. Enter a new one.")
        assert await harness.get_failed_fields(project) == {"api": "token", "repository": "token"}

    async def test_an_exhausted_rate_limit_is_reported_without_waiting(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        project = await harness.create_project(site.url, apiUrl=double.api_url)
        await harness.put_credentials(project, token=Secret(double.tokens.make("bot").text))
        double.limit.exhaust(reset_in_s=1800)
        try:
            async with asyncio.timeout(20):
                found = await harness.get_findings(project)
            with pytest.raises(ForgeRateLimitedError):
                await (await harness.access.get_github_repository(project)).get_permissions()
        finally:
            double.limit.exhaust(reset_in_s=-1)
        assert (found["api"][0], found["repository"][0]) == (False, True)
        assert "is rate-limiting this credential until" in found["api"][1]

    async def test_an_expiring_token_and_a_low_budget_are_reported(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        project = await harness.create_project(site.url, apiUrl=double.api_url)
        await harness.put_credentials(project, token=Secret(double.tokens.make("bot").text))
        headers = {"GitHub-Authentication-Token-Expiration": "2026-12-31 00:00:00 UTC"}
        headers |= {"X-RateLimit-Remaining": "42", "X-RateLimit-Reset": str(int(time.time()) + 600)}
        archived = b'{"permissions": {"push": true}, "archived": true, "default_branch": "main"}'
        double.faults.answer(200, on="api", path=f"/repos/{site.slug}", headers=headers, body=archived)
        found = await harness.get_findings(project)
        assert found["api"] == (True, "GitHub responds. The token expires at 2026-12-31 00:00:00 UTC.")
        assert found["push"] == (False, f"The repository {site.slug} is archived and read-only.")
        assert found["budget"][0] is False
        assert "Only 42 of 5000 requests are left" in found["budget"][1]

    async def test_an_app_without_permission_for_pull_requests_is_reported(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        app = double.app("acme", permissions={"contents": "write"})
        project = await harness.create_project(site.url, apiUrl=double.api_url)
        await harness.put_credentials(
            project, app=AppKey(str(app.app_id), str(app.installation_id), Secret(app.private_key))
        )
        found = await harness.get_findings(project)
        assert {what for what, (ok, _) in found.items() if not ok} == {"push"}
        assert "It needs 'Pull requests: read and write'" in found["push"][1]
        assert found["credential"][1] == "Uses a GitHub App."

    async def test_a_plain_remote_is_checked_without_an_api(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        project = await harness.create_project(site.url)
        await harness.put_credentials(project, token=Secret(double.tokens.make("bot").text))
        found = await harness.get_findings(project)
        assert list(found) == ["credential", "forge", "repository", "base_branch", "push"]
        assert found["credential"] == (True, "Uses a token."), "it need not be stored"
        assert all(ok for ok, _ in found.values()), found

    async def test_a_read_only_token_for_a_plain_remote_fails_the_push_check(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        project = await harness.create_project(site.url)
        await harness.put_credentials(project, token=Secret(double.tokens.make("bot", write=False).text))
        found = await harness.get_findings(project)
        assert {what for what, (ok, _) in found.items() if not ok} == {"push"}
        assert found["push"][1].startswith("The token can read the repository but not push to it.")
        assert await harness.get_failed_fields(project) == {"push": "token"}

    async def test_the_api_check_includes_the_permission_to_push(
        self, harness: AccessHarness, double: GitHub, site: Repository
    ) -> None:
        project = await harness.create_project(site.url, apiUrl=double.api_url)
        await harness.put_credentials(project, token=Secret(double.tokens.make("bot", write=False).text))
        with pytest.raises(ConnectionTestFailedError, match="'Contents: read and write'"):
            await harness.tests.check_api(project)

    async def test_a_project_without_a_repository_is_reported(self, harness: AccessHarness) -> None:
        found = await harness.get_findings(await harness.create_project(None))
        assert found == {"repository": (False, "The project has no repository. Add one in its settings.")}

    async def test_a_stranger_cannot_test_the_connection(self, harness: AccessHarness, site: Repository) -> None:
        project = await harness.create_project(site.url)
        eve = await harness.world.create_person("eve")
        with pytest.raises(NotFoundError):
            await harness.tests.check(eve.principal, project.id)
