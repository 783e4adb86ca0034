from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select, update

from sandyard.kit.errors import ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault, VaultError
from sandyard.platform.db.models import StoredSecret
from sandyard.platform.domain.paging import PageRequest
from tests.unit.platform.world import World


async def test_write_list_reveal_delete(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    first = await world.secrets.put(maria, "NPM_TOKEN", Secret("hunter2"))
    await world.clock.advance(1)
    second = await world.secrets.put(maria, "NPM_TOKEN", Secret("hunter3"))
    assert second.id == first.id and second.updated_at > first.updated_at and second.created_at == first.created_at
    listed = await world.secrets.list(maria, PageRequest())
    assert [info.name for info in listed.items] == ["NPM_TOKEN"] and "hunter" not in repr(listed)
    revealed = await world.secrets.reveal(maria.user_id, "NPM_TOKEN")
    assert revealed == Secret("hunter3")
    await world.secrets.delete(maria, "NPM_TOKEN")
    with pytest.raises(NotFoundError):
        await world.secrets.delete(maria, "NPM_TOKEN")
    assert await world.secrets.reveal(maria.user_id, "NPM_TOKEN") is None
    emitted = [(event.kind, event.data) for event in await world.list_events() if event.kind.startswith("secret.")]
    assert emitted == [("secret.written", {"name": "NPM_TOKEN"})] * 2 + [("secret.deleted", {"name": "NPM_TOKEN"})]


async def test_project_secrets_are_separate(world: World) -> None:
    maria, otto, eve = [(await world.create_person(name)).principal for name in ("maria", "otto", "eve")]
    project = await world.projects.create(maria, "website")
    await world.projects.add_member(maria, project.id, otto.user_id)
    await world.secrets.put(maria, "KEY", Secret("own"))
    await world.secrets.put(maria, "KEY", Secret("shared"), project.id)
    assert await world.secrets.reveal(maria.user_id, "KEY") == Secret("own")
    assert await world.secrets.reveal(maria.user_id, "KEY", project.id) == Secret("shared")
    assert len((await world.secrets.list(otto, PageRequest(), project.id)).items) == 1
    assert (await world.secrets.list(otto, PageRequest())).items == []
    with pytest.raises(ForbiddenError):
        await world.secrets.put(otto, "KEY", Secret("x"), project.id)
    for hidden in (
        world.secrets.put(eve, "KEY", Secret("x"), project.id),
        world.secrets.list(eve, PageRequest(), project.id),
        world.secrets.delete(eve, "KEY", project.id),
        world.secrets.delete(eve, "KEY"),
    ):
        with pytest.raises(NotFoundError):
            await hidden
    await world.projects.delete(maria, project.id)
    async with world.database.reading() as session:
        assert [row.project_id for row in await session.scalars(select(StoredSecret))] == [None]


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "ä", "A" * 201, "A\n"])
async def test_rejects_invalid_names(world: World, name: str) -> None:
    maria = (await world.create_person("maria")).principal
    with pytest.raises(InvalidInputError):
        await world.secrets.put(maria, name, Secret("x"))


async def test_values_are_encrypted_and_bound_to_row(world: World) -> None:
    maria, otto = [(await world.create_person(name)).principal for name in ("maria", "otto")]
    await world.secrets.put(maria, "KEY", Secret("a-very-readable-value"))
    await world.secrets.put(otto, "KEY", Secret("another"))
    async with world.database.reading() as session:
        stored = {row.owner_id: row.value for row in await session.scalars(select(StoredSecret))}
    for path in world.settings.data_dir.iterdir():
        assert b"a-very-readable-value" not in path.read_bytes()
    async with world.database.transaction() as tx:
        swap = update(StoredSecret).where(StoredSecret.owner_id == otto.user_id)
        await tx.session.execute(swap.values(value=stored[maria.user_id]))
    with pytest.raises(VaultError):
        await world.secrets.reveal(otto.user_id, "KEY")


async def test_concurrent_writes_of_same_secret(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    await asyncio.gather(*(world.secrets.put(maria, "KEY", Secret(str(number))) for number in range(8)))
    assert len((await world.secrets.list(maria, PageRequest())).items) == 1


def test_key_file_is_private_and_created_once(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "secret.key"
    one, two = Vault(path), Vault(path)
    sealed = one.seal(Secret("täst\n"), "a", "b")
    assert two.open(sealed, "a", "b").reveal() == "täst\n"
    assert path.stat().st_mode & 0o777 == 0o600 and [entry.name for entry in path.parent.iterdir()] == ["secret.key"]
    assert one.seal(Secret("x"), "a") != one.seal(Secret("x"), "a")
    for place in (("a", "c"), ("ab",), ("a", "b", ""), ()):
        with pytest.raises(VaultError):
            two.open(sealed, *place)
    with pytest.raises(VaultError):
        two.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), "a", "b")
    with pytest.raises(VaultError, match="form"):
        two.open(b"", "a")


def test_reports_wrong_or_broken_key(tmp_path: Path) -> None:
    sealed = Vault(tmp_path / "one").seal(Secret("x"), "a")
    with pytest.raises(VaultError, match="a different key"):
        Vault(tmp_path / "two").open(sealed, "a")
    (tmp_path / "three").write_text("abc")
    with pytest.raises(VaultError, match="does not contain a key"):
        Vault(tmp_path / "three").open(sealed, "a")
