from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.secrets.outbound import SecretsOutbound
from sandyard.engine.secrets.service import Secrets
from sandyard.engine.store.database import Database
from sandyard.kit.clock import ManualClock
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault, VaultError

VALUE = "planted-0f5c1d"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    engine_database = Database(tmp_path / "engine.db")
    engine_database.open()
    yield engine_database
    engine_database.close()


@pytest.fixture
def secrets(database: Database, tmp_path: Path) -> Secrets:
    return Secrets(database, tmp_path / "secrets.key", ManualClock(1000.0))


async def test_a_created_secret_is_found_by_name_and_id(secrets: Secrets) -> None:
    created = await secrets.create("OpenAI-Key", Secret(VALUE), {"team": "red"})
    assert created.id.startswith("sec_")
    assert (created.name, created.version, created.metadata) == ("openai-key", 1, {"team": "red"})
    assert secrets.get("OPENAI-key") == secrets.get(created.id) == created
    assert not hasattr(created, "value")


async def test_updates_create_versions(secrets: Secrets) -> None:
    created = await secrets.create("key", Secret("one"), {"a": "b"})
    assert (await secrets.update("key", Secret("two"))).metadata == {"a": "b"}
    assert (await secrets.update(created.id, Secret("three"), {})).metadata == {}
    assert secrets.get("key").version == 3
    assert secrets.reveal("KEY").reveal() == "three"


async def test_names_are_unique_and_can_be_reused_after_deletion(secrets: Secrets) -> None:
    await secrets.create("key", Secret("one"))
    with pytest.raises(ConflictError, match="'key'"):
        await secrets.create("KEY", Secret("two"))
    await secrets.delete("Key")
    with pytest.raises(NotFoundError):
        await secrets.delete("key")
    assert (await secrets.create("key", Secret("three"))).version == 1


async def test_pages_list_the_newest_first(secrets: Secrets) -> None:
    for number in range(5):
        await secrets.create(f"key-{number}", Secret("value"))
    first = secrets.list(2)
    second = secrets.list(2, first.next_cursor)
    third = secrets.list(2, second.next_cursor)
    assert [info.name for page in (first, second, third) for info in page.items] == [
        f"key-{n}" for n in (4, 3, 2, 1, 0)
    ]
    assert third.next_cursor is None
    with pytest.raises(InvalidInputError):
        secrets.list(2, "seq")


@pytest.mark.parametrize("name", ["", "a{b", "a}b", "a\nb", "sec_mine", "SEC_mine", "x" * 256, "\ud800"])
async def test_invalid_names_are_rejected(secrets: Secrets, name: str) -> None:
    with pytest.raises(InvalidInputError):
        await secrets.create(name, Secret("value"))


@pytest.mark.parametrize(
    ("value", "metadata"),
    [
        ("", {}),
        ("x" * (33 << 10), {}),
        ("\udfff", {}),
        ("value", {str(n): "x" for n in range(33)}),
        ("value", {"k" * 129: "x"}),
        ("value", {"": "x"}),
        ("value", {"k": "x" * 1025}),
        ("value", {str(n): "x" * 1000 for n in range(9)}),
    ],
)
async def test_invalid_values_and_metadata_are_rejected(secrets: Secrets, value: str, metadata: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        await secrets.create("key", Secret(value), metadata)
    assert secrets.list(10).items == ()


async def test_secrets_are_never_stored_in_plain_text(secrets: Secrets, database: Database, tmp_path: Path) -> None:
    await secrets.create("key", Secret(VALUE))
    await secrets.update("key", Secret(VALUE + "-two"))
    database.close()
    for path in tmp_path.iterdir():
        assert VALUE.encode() not in path.read_bytes(), path
    assert stat.S_IMODE((tmp_path / "secrets.key").stat().st_mode) == 0o600
    database.open()


async def test_a_sealed_value_cannot_be_moved_to_another_secret(secrets: Secrets, database: Database) -> None:
    await secrets.create("mine", Secret("one"))
    await secrets.create("theirs", Secret("two"))
    database.execute(
        "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'mine') WHERE name = 'theirs'"
    )
    with pytest.raises(VaultError):
        secrets.reveal("theirs")


async def test_placeholders_are_filled_with_the_current_values(secrets: Secrets, tmp_path: Path) -> None:
    outbound = SecretsOutbound(secrets, Authority.load(tmp_path / "ca"))
    await secrets.create("one", Secret("${e2b.secrets.two}"))
    await secrets.create("two", Secret("2"))
    assert await outbound.fill("Basic ${e2b.secrets.ONE}:${e2b.secrets.two}") == "Basic ${e2b.secrets.two}:2"
    await secrets.update("two", Secret("3"))
    assert await outbound.fill("${e2b.secrets.two}") == "3"
    assert (outbound.holds_secret("${e2b.secrets.two}"), outbound.holds_secret("$two {e2b}")) == (True, False)
    with pytest.raises(NotFoundError, match="'three'"):
        await outbound.fill("${e2b.secrets.three}")


async def test_a_rotated_key_is_removed_a_day_later(secrets: Secrets, database: Database, tmp_path: Path) -> None:
    file = tmp_path / "secrets.key"
    await secrets.create("one", Secret("1"))
    before = file.read_text()
    state = await secrets.rotate_key()
    assert [count for _, count in state.keys] == [1, 0]
    assert before in file.read_text()
    os.utime(file, (1000.0, 1000.0))  # the time of the clock
    await secrets.tidy_keys()
    assert len(secrets.describe_keys().keys) == 2
    os.utime(file, (1000.0 - 25 * 3600,) * 2)
    await secrets.tidy_keys()
    assert before not in file.read_text()
    assert secrets.reveal("one").reveal() == "1"


async def test_a_rotation_continues_after_a_crash_and_despite_a_lost_key(
    secrets: Secrets, database: Database, tmp_path: Path
) -> None:
    await secrets.create("lost", Secret("0"))
    (tmp_path / "secrets.key").unlink()
    other = Secrets(database, tmp_path / "secrets.key", ManualClock(1000.0))
    await other.create("one", Secret("1"))
    Vault(tmp_path / "secrets.key").rotate()
    assert [count for _, count in other.describe_keys().keys] == [0, 1]
    await other.tidy_keys()
    state = other.describe_keys()
    assert [count for _, count in state.keys] == [1, 0]
    assert state.unknown == 1
    assert other.reveal("one").reveal() == "1"
