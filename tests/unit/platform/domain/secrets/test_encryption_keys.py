"""Rotating the key that encrypts stored secrets: everything stays readable, and the old key is removed in time."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault, VaultError
from sandyard.platform.api import encryption_keys
from sandyard.platform.db.models import AgentRun, Credential, Project, Sandbox, Session, StoredSecret
from sandyard.platform.domain.models.capability import Capabilities
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.secrets.encryption_keys import EncryptionKeys
from tests.unit.platform.world import Person, World, client

DAY = 24 * 3600


@pytest.fixture
async def admin(world: World) -> Person:
    return await world.create_person("root", "admin")


@pytest.fixture
def keys(world: World) -> EncryptionKeys:
    return EncryptionKeys(world.database, world.vault, world.clock)


async def store(world: World, owner: Person) -> None:
    """Store a secret, a credential and variables of a sandbox."""
    await world.secrets.put(owner.principal, "TOKEN", Secret("secret of a user"))
    now = utc_now()
    async with world.database.transaction() as tx:
        tx.session.add(Project(id="prj_1", owner_id=owner.principal.user_id, name="p", created_at=now, updated_at=now))
        await tx.session.flush()
        for kind in ("token", "webhook_secret"):
            sealed = world.vault.seal(Secret(f"the {kind}"), "credential", "prj_1", kind)
            tx.session.add(
                Credential(project_id="prj_1", kind=kind, value=sealed, hint="", created_at=now, updated_at=now)
            )
        tx.session.add(
            Sandbox(
                id="sbx_1",
                owner_id=owner.principal.user_id,
                template="base",
                idempotency_key="sbx_1",
                status="running",
                idle_seconds=300,
                created_at=now,
                envs=world.vault.seal(Secret("{}"), "sandbox envs", "sbx_1"),
            )
        )


async def read(world: World, vault: Vault) -> list[str]:
    """Read what was stored with another process's vault."""
    async with world.database.reading() as session:
        secret = (await session.scalars(select(StoredSecret))).one()
        credentials = list(await session.scalars(select(Credential).order_by(Credential.kind)))
    opened = [vault.open(secret.value, secret.owner_id, secret.project_key, secret.name)]
    opened += [vault.open(row.value, "credential", row.project_id, row.kind) for row in credentials]
    return [value.reveal() for value in opened]


STORED = ["secret of a user", "the token", "the webhook_secret"]


async def test_everything_is_encrypted_with_the_new_key(world: World, admin: Person, keys: EncryptionKeys) -> None:
    await store(world, admin)
    other = Vault(world.settings.data_dir / "secret.key")
    before = (await keys.describe()).keys
    assert [count for _, count in before] == [4]
    state = await keys.rotate()
    assert [count for _, count in state.keys] == [4, 0]
    assert state.keys[1][0] == before[0][0]
    assert await read(world, other) == STORED
    world.vault.retire()
    assert await read(world, Vault(world.settings.data_dir / "secret.key")) == STORED


async def test_the_old_key_is_removed_after_a_day(world: World, admin: Person, keys: EncryptionKeys) -> None:
    await store(world, admin)
    await keys.rotate()
    set_change_time(world, at=world.clock.now() - DAY + 60)
    await keys.tidy()
    assert len(world.vault.list_key_ids()) == 2
    set_change_time(world, at=world.clock.now() - DAY - 60)
    await keys.tidy()
    assert len(world.vault.list_key_ids()) == 1
    assert await read(world, world.vault) == STORED


async def test_an_interrupted_rotation_is_finished(world: World, admin: Person, keys: EncryptionKeys) -> None:
    await store(world, admin)
    world.vault.rotate()
    set_change_time(world, at=world.clock.now() - 2 * DAY)
    assert [count for _, count in (await keys.describe()).keys] == [0, 4]
    await keys.tidy()
    assert len(world.vault.list_key_ids()) == 1
    assert await read(world, world.vault) == STORED


async def test_the_old_key_stays_while_an_agent_from_before_is_running(
    world: World, admin: Person, keys: EncryptionKeys
) -> None:
    await store(world, admin)
    capabilities = Capabilities(world.vault)
    capability = capabilities.derive("sbx_1").reveal()
    rotated_at = world.clock.now() - 2 * DAY
    async with world.database.transaction() as tx:
        now = utc_now()
        owner = admin.principal.user_id
        tx.session.add(
            Session(
                id="ses_1",
                owner_id=owner,
                sandbox_id="sbx_1",
                title="",
                template="base",
                created_at=now,
                updated_at=now,
            )
        )
        await tx.session.flush()
        started = datetime.fromtimestamp(rotated_at - 60, UTC)
        run = AgentRun(
            id="run_1", session_id="ses_1", sandbox_id="sbx_1", agent="demo", status="ready", started_at=started
        )
        tx.session.add(run)
    await keys.rotate()
    set_change_time(world, at=rotated_at)
    await keys.tidy()
    assert len(world.vault.list_key_ids()) == 2
    assert capabilities.derive("sbx_1").reveal() != capability
    assert capabilities.is_valid("sbx_1", [capability])
    assert not capabilities.is_valid("sbx_2", [capability])
    async with world.database.transaction() as tx:
        ended = await tx.session.get(AgentRun, "run_1")
        assert ended is not None
        ended.ended_at = utc_now()
    await keys.tidy()
    assert len(world.vault.list_key_ids()) == 1
    assert not capabilities.is_valid("sbx_1", [capability])


def set_change_time(world: World, *, at: float) -> None:
    """Set when the key file was last changed."""
    os.utime(world.settings.data_dir / "secret.key", (at, at))


async def test_only_administrators_rotate_keys(world: World, admin: Person, keys: EncryptionKeys) -> None:
    world.encryption_keys = keys  # type: ignore[attr-defined]
    app = world.app(encryption_keys.router)
    async with client(app, await world.create_person("maria")) as web:
        assert (await web.post("/api/v1/encryption-keys/rotate")).status_code == 403
        assert (await web.get("/api/v1/encryption-keys")).status_code == 403
    async with client(app, admin) as web:
        answer = (await web.post("/api/v1/encryption-keys/rotate")).json()
    assert [(key["place"], key["current"]) for key in answer["items"]] == [("platform", True), ("platform", False)]
    assert answer["engineError"]


def test_processes_share_keys_and_a_lost_key_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    first, second = Vault(file), Vault(file)
    old = first.seal(Secret("old"), "here")
    second.rotate()
    new = second.seal(Secret("new"), "here")
    assert [first.open(old, "here").reveal(), first.open(new, "here").reveal()] == ["old", "new"]
    assert first.is_current(new) and not first.is_current(old)
    assert file.stat().st_mode & 0o777 == 0o600
    assert second.retire() == 1
    with pytest.raises(VaultError, match="different key"):
        first.open(old, "here")
    assert first.open(new, "here").reveal() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]
