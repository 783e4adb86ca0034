"""Which agents users see, and how they manage their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.platform.domain.agents import catalogue
from sandyard.platform.domain.agents.catalogue import AgentCatalogue
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.agents.profiles.custom import CustomProfile, Definition
from sandyard.platform.domain.agents.profiles.model import LaunchRequest
from sandyard.platform.domain.models.model import ModelApi, ModelEndpoint
from sandyard.platform.domain.users.model import NameTakenError
from tests.unit.platform.world import World, open_world

PLAIN = Definition(argv=["my-agent", "acp"])
WISH = LaunchRequest(home="/home/user", folder="/home/user/repo")
ENDPOINT = ModelEndpoint(ModelApi.OPENAI_CHAT, "http://127.0.0.1:4100/prv_1", Secret("cap_1"), "fallback")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as made:
        yield made


async def test_users_see_built_in_shared_and_own_agents(world: World) -> None:
    agents = AgentCatalogue(world.database, world.settings)
    root, ann, bob = [
        (await world.create_person(name, role)).principal
        for name, role in (("ada", "admin"), ("ann", "member"), ("bob", "member"))
    ]
    await agents.create(root, "shared", "Shared", PLAIN)
    await agents.create(ann, "anns", None, PLAIN)

    def names(found: list[Any]) -> list[str]:
        return [item.profile.name for item in found]

    assert names(await agents.list(ann)) == [*BUILT_IN, "anns", "shared"]
    assert names(await agents.list(bob)) == [*BUILT_IN, "shared"]
    assert names(await agents.list(root)) == [*BUILT_IN, "anns", "shared"]
    assert (await agents.get(ann, "anns")).owner_id == ann.user_id
    assert (await agents.get(bob, "shared")).owner_id is None
    assert (await agents.profile(bob.user_id, "shared")).title == "Shared"
    assert (await agents.profile(bob.user_id, "demo")).demo
    with pytest.raises(NotFoundError):
        await agents.get(bob, "anns")
    with pytest.raises(InvalidInputError, match=r"Available: .*demo, shared\."):
        await agents.profile(bob.user_id, "anns")


async def test_limits_agents_per_user(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All agents are listed in one answer."""
    monkeypatch.setattr(catalogue, "MAX_OWN", 2)
    agents = AgentCatalogue(world.database, world.settings)
    root, ann, bob = [
        (await world.create_person(name, role)).principal
        for name, role in (("ada", "admin"), ("ann", "member"), ("bob", "member"))
    ]
    for name in ("one", "two"):
        await agents.create(ann, name, None, PLAIN)
    with pytest.raises(ConflictError, match="You have 2 agents; the limit is 2"):
        await agents.create(ann, "three", None, PLAIN)
    await agents.create(bob, "bobs", None, PLAIN)
    for name in ("first", "second", "third"):
        await agents.create(root, name, None, PLAIN)
    large = Definition(argv=["my-agent", *["x" * 4096] * 40])
    with pytest.raises(InvalidInputError, match="the limit is 128 KiB"):
        await agents.create(bob, "large", None, large)
    with pytest.raises(InvalidInputError, match="the limit is 128 KiB"):
        await agents.update(bob, "bobs", None, large)


@pytest.mark.both_databases
async def test_limits_concurrent_creates(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_OWN", 2)
    async with open_world(tmp_path, database_url=database_url) as made:
        agents, ann = AgentCatalogue(made.database, made.settings), (await made.create_person("ann")).principal
        adding = [agents.create(ann, f"agent-{number}", None, PLAIN) for number in range(6)]
        found = await asyncio.gather(*adding, return_exceptions=True)
        assert sum(isinstance(item, ConflictError) for item in found) == 4
        assert len(await agents.list(ann)) == len(BUILT_IN) + 2


async def test_names_are_unique_and_only_owner_may_change(world: World) -> None:
    agents = AgentCatalogue(world.database, world.settings)
    root, ann = (await world.create_person("ada", "admin")).principal, (await world.create_person("ann")).principal
    await agents.create(root, "shared", None, PLAIN)
    for name in ("shared", "demo"):
        with pytest.raises(NameTakenError):
            await agents.create(ann, name, None, PLAIN)
    for name in ("", "Upper", "9lives", "a b", "a" * 51, "-x", "x\n"):
        with pytest.raises(InvalidInputError):
            await agents.create(ann, name, None, PLAIN)
    for verb in (agents.update(ann, "shared", None, PLAIN), agents.delete(ann, "shared")):
        with pytest.raises(ForbiddenError):
            await verb
    for verb in (agents.update(root, "demo", None, PLAIN), agents.delete(root, "demo")):
        with pytest.raises(ConflictError):
            await verb
    changed = await agents.update(root, "shared", "New", Definition(argv=["other"]))
    assert (changed.profile.title, changed.profile.launch(WISH).argv) == ("New", ("other",))
    await agents.delete(root, "shared")
    with pytest.raises(NotFoundError):
        await agents.delete(root, "shared")
    kinds = [event.kind for event in await world.list_events() if event.kind.startswith("agent.")]
    assert kinds == ["agent.created", "agent.updated", "agent.deleted"]


def test_fills_in_placeholders() -> None:
    definition = Definition(
        argv=["{home}/bin/it", "--model={model}", "{folder}", "{other}"],
        envs={"BASE": "{base_url}/v1", "KEY": "{capability}"},
        apis=[ModelApi.OPENAI_CHAT],
    )
    profile = CustomProfile("it", "It", definition)
    launch = profile.launch(LaunchRequest(WISH.home, "/w {model}", model=None, endpoint=ENDPOINT))
    assert launch.argv == ("/home/user/bin/it", "--model=fallback", "/w {model}", "{other}")
    assert launch.envs == {"BASE": "http://127.0.0.1:4100/prv_1/v1", "KEY": "cap_1"}
    assert profile.launch(LaunchRequest("/h", "/f", "big", None, ENDPOINT)).argv[1] == "--model=big"
    with pytest.raises(InvalidInputError, match=r"needs a model\. Choose one, or remove \{model\}"):
        profile.launch(WISH)
    with pytest.raises(InvalidInputError, match="model provider"):
        CustomProfile("it", "It", Definition(argv=["x"], envs={"A": "{base_url}"}, apis=[ModelApi.OPENAI])).launch(WISH)
    assert Definition.model_validate(definition.to_column()) == definition


def test_install_version_depends_on_script() -> None:
    def made(script: str) -> CustomProfile:
        return CustomProfile(
            "x", "X", Definition.model_validate({"argv": ["x"], "install": {"script": script, "check": "true"}})
        )

    one, same, other = made("a").install, made("a").install, made("b").install
    assert one == same
    assert one is not None
    assert other is not None
    assert one.version != other.version
    assert CustomProfile("x", "X", PLAIN).install is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"argv": []},
        {"argv": [" "]},
        {"argv": ["x"], "envs": {"A B": "c"}},
        {"argv": ["x", "{capability}"]},
        {"argv": ["x"], "install": {"script": "x"}},
        {"argv": ["x"], "apis": ["telepathy"]},
        {"argv": ["x"], "more": 1},
    ],
)
def test_rejects_invalid_definition(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Definition.model_validate(wrong)
