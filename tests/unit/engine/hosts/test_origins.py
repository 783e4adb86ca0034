"""Test the engine's record of the hosts on which layers and volumes are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.engine.drivers.cluster.model import make_volume_name
from sandyard.engine.hosts.origins import StoredOrigins
from sandyard.engine.store.database import Database
from sandyard.kit.errors import ConflictError


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "engine.db")
    database.open()
    yield database
    database.close()


def test_a_host_cannot_claim_the_layers_of_another(database: Database) -> None:
    origins = StoredOrigins(database)
    origins.record("snap:s1", "host-1")
    origins.record("snap:s1", "host-1")
    with pytest.raises(ConflictError, match="host-2"):
        origins.record("snap:s1", "host-2")
    assert StoredOrigins(database).find_host("snap:s1") == "host-1"
    origins.forget("snap:s1")
    origins.record("snap:s1", "host-2")


def test_the_first_digest_stays(database: Database) -> None:
    origins = StoredOrigins(database)
    assert origins.find_content("snap:s1") is None
    for digest in ("sha256:1", "sha256:2"):
        origins.record_content("snap:s1", digest)
    assert origins.find_content("snap:s1") == "sha256:1"
    assert origins.find_host("snap:s1") is None
    with pytest.raises(ConflictError):
        origins.record("snap:s1", "host-1")


def test_layers_that_nothing_uses_are_forgotten(database: Database) -> None:
    origins = StoredOrigins(database)
    volume = make_volume_name("v1")
    for name in ("snap:s1", "snap:s2", volume):
        origins.record(name, "host-1")
    origins.remove_unused_layers(lambda layer: layer == "snap:s2")
    assert [origins.find_host(name) for name in ("snap:s1", "snap:s2", volume)] == [None, "host-1", "host-1"]
