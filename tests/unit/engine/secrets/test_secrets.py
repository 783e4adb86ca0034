from __future__ import annotations

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
from sandyard.kit.vault import VaultError

VALUE = "planted-0f5c1d"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "engine.db")
    made.open()
    yield made
    made.close()


@pytest.fixture
def secrets(database: Database, tmp_path: Path) -> Secrets:
    return Secrets(database, tmp_path / "secrets.key", ManualClock(1000.0))


async def test_a_secret_is_written_and_told_of(secrets: Secrets) -> None:
    made = await secrets.create("OpenAI-Key", Secret(VALUE), {"team": "red"})
    assert made.id.startswith("sec_")
    assert (made.name, made.version, made.metadata) == ("openai-key", 1, {"team": "red"})
    assert secrets.get("OPENAI-key") == secrets.get(made.id) == made
    assert not hasattr(made, "value")


async def test_updates_make_versions(secrets: Secrets) -> None:
    made = await secrets.create("key", Secret("one"), {"a": "b"})
    assert (await secrets.update("key", Secret("two"))).metadata == {"a": "b"}
    assert (await secrets.update(made.id, Secret("three"), {})).metadata == {}
    assert secrets.get("key").version == 3
    assert secrets.reveal("KEY").reveal() == "three"


async def test_names_are_unique_and_come_free_again(secrets: Secrets) -> None:
    await secrets.create("key", Secret("one"))
    with pytest.raises(ConflictError, match="'key'"):
        await secrets.create("KEY", Secret("two"))
    await secrets.delete("Key")
    with pytest.raises(NotFoundError):
        await secrets.delete("key")
    assert (await secrets.create("key", Secret("three"))).version == 1


async def test_pages_newest_first(secrets: Secrets) -> None:
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
async def test_names_that_are_refused(secrets: Secrets, name: str) -> None:
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
async def test_values_and_metadata_that_are_refused(secrets: Secrets, value: str, metadata: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        await secrets.create("key", Secret(value), metadata)
    assert secrets.list(10).items == ()


async def test_nothing_on_the_disk_is_in_plain_text(secrets: Secrets, database: Database, tmp_path: Path) -> None:
    await secrets.create("key", Secret(VALUE))
    await secrets.update("key", Secret(VALUE + "-two"))
    database.close()
    for path in tmp_path.iterdir():
        assert VALUE.encode() not in path.read_bytes(), path
    assert stat.S_IMODE((tmp_path / "secrets.key").stat().st_mode) == 0o600
    database.open()


async def test_rows_that_are_exchanged_do_not_open(secrets: Secrets, database: Database) -> None:
    await secrets.create("mine", Secret("one"))
    await secrets.create("theirs", Secret("two"))
    database.execute(
        "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'mine') WHERE name = 'theirs'"
    )
    with pytest.raises(VaultError):
        secrets.reveal("theirs")


async def test_placeholders_are_filled_with_what_is_stored_now(secrets: Secrets, tmp_path: Path) -> None:
    outbound = SecretsOutbound(secrets, Authority.load(tmp_path / "ca"))
    await secrets.create("one", Secret("${e2b.secrets.two}"))
    await secrets.create("two", Secret("2"))
    assert await outbound.fill("Basic ${e2b.secrets.ONE}:${e2b.secrets.two}") == "Basic ${e2b.secrets.two}:2"
    await secrets.update("two", Secret("3"))
    assert await outbound.fill("${e2b.secrets.two}") == "3"
    assert (outbound.holds_secret("${e2b.secrets.two}"), outbound.holds_secret("$two {e2b}")) == (True, False)
    with pytest.raises(NotFoundError, match="'three'"):
        await outbound.fill("${e2b.secrets.three}")
