from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Project, Session
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.projects import model
from sandyard.platform.domain.projects.model import ForgeSettings, NetworkSettings, ProjectSettings
from sandyard.platform.domain.projects.patterns import InvalidPatternError
from sandyard.platform.domain.projects.service import Projects, owner_has_access
from sandyard.platform.domain.repositories.errors import RepositoryInvalidError
from sandyard.platform.domain.users.model import Principal
from tests.unit.platform.domain.projects.pattern_examples import COMPLEX
from tests.unit.platform.world import ROOT, World

PEOPLE = (("maria", "member"), ("otto", "member"), ("admin", "admin"))


async def test_private_addresses_require_administrator(world: World) -> None:
    projects = Projects(world.database, world.clock, Destinations(["10.1.0.0/16"]))
    maria = (await world.create_person("maria")).principal
    admin = (await world.create_person("admin", role="admin")).principal
    inside = ProjectSettings(forge=ForgeSettings(api_url="http://127.0.0.1:8700/api/v3"))
    for repository, settings in (
        ("http://127.0.0.1:9000/a/b.git", None),
        ("git@192.168.1.1:a/b.git", None),
        ("ssh://localhost/a/b", None),
        ("https://github.com/a/b", inside),
        ("https://github.com/a/b", ProjectSettings(network=NetworkSettings(mode="listed", allow=["10.0.0.0/8"]))),
    ):
        with pytest.raises(ForbiddenError, match="SANDYARD_PRIVATE_HOSTS"):
            await projects.create(maria, "mine", repository=repository, settings=settings)
        mine = await projects.create(maria, "mine", repository="http://10.1.2.3/a/b")
        with pytest.raises(ForbiddenError, match="private network"):
            await projects.update(maria, mine.id, repository=repository, settings=settings)
        assert not (await projects.get_remote(mine)).trusted
        made = await projects.create(admin, "ours", repository=repository, settings=settings)
        assert (await projects.get_remote(made)).trusted


async def test_local_paths_require_an_owner_who_is_an_administrator(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    admin = (await world.create_person("admin", role="admin")).principal
    await world.create_person("another", role="admin")
    projects = Projects(world.database, world.clock, Destinations())
    mine = await projects.create(maria, "mine")
    for caller in (maria, admin):
        with pytest.raises(ForbiddenError, match="https or ssh URL"):
            await projects.update(caller, mine.id, repository="/srv/repository.git")
    ours = await projects.create(admin, "ours", repository="/srv/repository.git")
    assert (await projects.get_remote(ours)).trusted
    await world.users.update(ROOT, admin.user_id, role="member")
    assert not (await projects.get_remote(ours)).trusted  # git refuses it, see test_git_process.py


async def test_visibility_and_permissions(world: World) -> None:
    maria, otto, eve = [await world.create_person(name) for name in ("maria", "otto", "eve")]
    project = await world.projects.create(maria.principal, "website")
    await world.projects.add_member(maria.principal, project.id, otto.principal.user_id)
    await world.projects.add_member(maria.principal, project.id, otto.principal.user_id)
    for sees in (maria.principal, otto.principal, ROOT):
        assert (await world.projects.get(sees, project.id)).name == "website"
        assert [item.id for item in (await world.projects.list(sees, PageRequest())).items] == [project.id]
        assert [user.name for user in await world.projects.list_members(sees, project.id)] == ["otto"]
    assert (await world.projects.list(eve.principal, PageRequest())).items == []
    for hidden in (
        world.projects.get(eve.principal, project.id),
        world.projects.update(eve.principal, project.id, name="mine"),
        world.projects.delete(eve.principal, project.id),
        world.projects.list_members(eve.principal, project.id),
        world.projects.add_member(eve.principal, project.id, eve.principal.user_id),
        world.projects.remove_member(eve.principal, project.id, eve.principal.user_id),
    ):
        with pytest.raises(NotFoundError):
            await hidden
    for refused in (
        world.projects.update(otto.principal, project.id, name="mine"),
        world.projects.delete(otto.principal, project.id),
        world.projects.add_member(otto.principal, project.id, eve.principal.user_id),
        world.projects.get_changeable(otto.principal, project.id),
    ):
        with pytest.raises(ForbiddenError):
            await refused
    await world.projects.remove_member(otto.principal, project.id, otto.principal.user_id)
    with pytest.raises(NotFoundError):
        await world.projects.get(otto.principal, project.id)


async def test_changes_emit_events(world: World) -> None:
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    project = await world.projects.create(maria.principal, "website", repository="https://example.org/w.git")
    before = project.updated_at
    await world.clock.advance(5)
    settings = ProjectSettings(idle_seconds=60, template="node")
    changed = await world.projects.update(maria.principal, project.id, base_branch="main", settings=settings)
    assert changed.repository == "https://example.org/w.git" and changed.base_branch == "main"
    assert changed.template == "node" and changed.settings["idleSeconds"] == 60 and changed.updated_at > before
    cleared = await world.projects.update(maria.principal, project.id, repository=None, archived=True)
    assert cleared.repository is None and cleared.archived_at is not None
    assert (await world.projects.list(maria.principal, PageRequest())).items == []
    assert len((await world.projects.list(maria.principal, PageRequest(), archived=True)).items) == 1
    await world.projects.add_member(maria.principal, project.id, otto.principal.user_id)
    await world.projects.remove_member(maria.principal, project.id, otto.principal.user_id)
    await world.projects.delete(maria.principal, project.id)
    emitted = [event for event in await world.list_events() if event.kind.startswith("project.")]
    assert [event.kind for event in emitted] == [
        "project.created",
        "project.updated",
        "project.updated",
        "project.member_added",
        "project.member_removed",
        "project.deleted",
    ]
    assert {(event.owner_id, event.project_id) for event in emitted} == {(maria.principal.user_id, project.id)}


async def test_members_must_exist(world: World) -> None:
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    project = await world.projects.create(maria.principal, "website")
    with pytest.raises(NotFoundError):
        await world.projects.add_member(maria.principal, project.id, "usr_nobody")
    with pytest.raises(InvalidInputError):
        await world.projects.add_member(maria.principal, project.id, maria.principal.user_id)
    await asyncio.gather(
        *(world.projects.add_member(maria.principal, project.id, otto.principal.user_id) for _ in range(5))
    )
    assert len(await world.projects.list_members(maria.principal, project.id)) == 1


def test_does_not_validate_stored_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read for each row of a list, and validating hundreds of hosts is slow."""
    entry = "api.example.org"
    with monkeypatch.context() as patched:
        patched.setattr(model, "check_host", lambda _: pytest.fail("checked again"))
        stored = {"network": {"mode": "listed", "allow": [entry]}}
        assert ProjectSettings.from_project(Project(settings=stored, template=None)).network.allow == [entry]
    with pytest.raises(ValidationError):
        ProjectSettings.model_validate({"network": {"allow": ["not a host"]}})


@pytest.mark.parametrize(
    "settings",
    [
        {"commandPolicy": {"deny": ["x" * 301]}},
        {"commandPolicy": {"deny": [""]}},
        {"commandPolicy": {"deny": ["a"] * 101}},
        {"commandPolicy": {"block": []}},
        {"idleSeconds": 1},
        {"idleSeconds": "soon"},
        {"template": "../x y"},
        {"tempalte": "base"},
    ],
)
def test_rejects_bad_settings(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ProjectSettings.model_validate(settings)


def _policy(**patterns: list[str]) -> ProjectSettings:
    return ProjectSettings.model_validate({"commandPolicy": patterns})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (_policy(allow=["("]), r"'\(' is not a valid regular expression: missing \)"),
        (_policy(deny=["ok", COMPLEX]), "cannot be used: it is too complex. Simplify it"),
        (ProjectSettings.model_validate({"agent": {"permissions": {"deny": [COMPLEX]}}}), "too complex"),
        (_policy(deny=["x" * 300] * 20, allow=["y" * 300] * 20), "12,000 characters in total; the limit is 10,000"),
    ],
)
async def test_rejects_invalid_patterns(world: World, settings: ProjectSettings, words: str) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website")
    for refused in (
        world.projects.create(maria, "other", settings=settings),
        world.projects.update(maria, project.id, settings=settings),
    ):
        with pytest.raises(InvalidPatternError, match=words):
            await refused
    assert (await world.projects.get(maria, project.id)).settings == ProjectSettings().to_column()


async def test_patterns_stored_under_other_limits_can_be_replaced(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website")
    async with world.database.transaction() as tx:
        row = await tx.session.get(Project, project.id)
        assert row is not None
        row.settings = _policy(deny=[COMPLEX] * 100, allow=["x" * 300] * 100).to_column()
    assert (
        ProjectSettings.from_project(await world.projects.get(maria, project.id)).command_policy.deny == [COMPLEX] * 100
    )
    assert (await world.projects.update(maria, project.id, name="site")).name == "site"
    changed = await world.projects.update(maria, project.id, settings=_policy(deny=["x"]))
    assert ProjectSettings.from_project(changed).command_policy.deny == ["x"]


async def test_normalizes_repository_and_rejects_credentials(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website", repository=" HTTPS://Example.org:443//w.git/ ")
    assert project.repository == "https://example.org/w.git" and project.base_branch is None
    changed = await world.projects.update(maria, project.id, repository="git@example.org:w.git")
    assert changed.repository == "git@example.org:w.git"
    for bad in ("https://maria:hunter2@example.org/w.git", "ext::sh -c id", "--upload-pack=x", "ftp://x/y", ""):
        for refused in (
            world.projects.create(maria, "other", repository=bad),
            world.projects.update(maria, project.id, repository=bad),
        ):
            with pytest.raises(RepositoryInvalidError) as error:
                await refused
            assert "hunter2" not in error.value.message
    for branch in ("-x", "a..b", "HEAD", "a b"):
        with pytest.raises(InvalidInputError):
            await world.projects.create(maria, "other", base_branch=branch)
        with pytest.raises(InvalidInputError):
            await world.projects.update(maria, project.id, base_branch=branch)
    assert len((await world.projects.list(maria, PageRequest())).items) == 1


async def test_local_paths_require_administrator(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website")
    for path in ("/etc", "file:///srv/w.git", "/srv//x/../w.git"):
        for refused in (
            world.projects.create(maria, "other", repository=path),
            world.projects.update(maria, project.id, repository=path),
        ):
            with pytest.raises(ForbiddenError, match="administrator"):
                await refused
    assert (await world.projects.update(ROOT, project.id, repository="file:///srv/w.git")).repository == "/srv/w.git"
    # a value set by an administrator stays when the owner changes something else
    assert (await world.projects.update(maria, project.id, name="web")).repository == "/srv/w.git"


async def test_credentials_are_never_sent_to_another_server(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website", repository="https://example.org/w.git")
    await world.credentials.put(maria, project.id, webhook_secret=Secret("s" * 16))
    moved = await world.projects.update(maria, project.id, repository="https://git.example.org/w.git")
    await world.credentials.put(maria, project.id, token=Secret("x" * 20))
    elsewhere = ProjectSettings(forge=ForgeSettings(api_url="https://evil.example/api"))
    at_port = ProjectSettings(forge=ForgeSettings(api_url="https://git.example.org:8443/api/v3"))
    for refused in (
        world.projects.update(maria, project.id, repository="https://evil.example/w.git"),
        world.projects.update(maria, project.id, repository="https://git.example.org:8443/w.git"),
        world.projects.update(maria, project.id, repository="http://git.example.org/w.git"),
        world.projects.update(maria, project.id, repository="http://git.example.org:443/w.git"),
        world.projects.update(maria, project.id, repository="ssh://git@git.example.org:2222/w.git"),
        world.projects.update(maria, project.id, settings=at_port),
        world.projects.update(maria, project.id, settings=elsewhere),
        world.projects.update(maria, project.id, repository=None),
        world.projects.update(ROOT, project.id, repository="/srv/w.git"),
    ):
        with pytest.raises(ConflictError, match=r"credentials for git\.example\.org"):
            await refused
    assert (await world.projects.get(maria, project.id)).repository == moved.repository
    # another path on the same server, and its own API, count as the same server
    same = ProjectSettings(forge=ForgeSettings(api_url="https://git.example.org:443/api/v3"))
    await world.projects.update(maria, project.id, repository="git@git.example.org:v.git", settings=same)
    await world.credentials.remove(maria, project.id, "token")
    await world.projects.update(maria, project.id, repository="https://other.example/w.git", settings=elsewhere)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8001/acme/w", "ssh://git@git.example.org:2222/acme/w"])
async def test_credentials_are_bound_to_port(world: World, address: str) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website", repository=address)
    await world.credentials.put(maria, project.id, token=Secret("x" * 20))
    await world.projects.update(maria, project.id, repository=address.replace("acme", "example"))
    for other in (
        address.replace("1/", "2/").replace("2222", "2223"),
        address.replace(":8001", "").replace(":2222", ""),
    ):
        with pytest.raises(ConflictError):
            await world.projects.update(maria, project.id, repository=other)


async def test_owner_loses_access_when_disabled_or_removed_from_the_project(world: World) -> None:
    maria, otto, admin = [(await world.create_person(name, role=role)).principal for name, role in PEOPLE]
    await world.create_person("last admin", role="admin")
    project = await world.projects.create(maria, "website")
    await world.projects.add_member(maria, project.id, otto.user_id)

    async def has_access(owner: Principal, project_id: str | None) -> bool:
        async with world.database.reading() as reading:
            return await owner_has_access(reading, Session(owner_id=owner.user_id, project_id=project_id))

    for owner in (maria, otto, admin):
        assert await has_access(owner, project.id) and await has_access(owner, None)
    await world.projects.remove_member(maria, project.id, otto.user_id)
    assert not await has_access(otto, project.id) and await has_access(otto, None)
    for owner in (maria, otto, admin):
        await world.users.update(ROOT, owner.user_id, disabled=True)
        assert not await has_access(owner, project.id) and not await has_access(owner, None)
