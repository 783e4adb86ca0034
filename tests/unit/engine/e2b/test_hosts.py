"""The routes for hosts, and their metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sandyard.engine.contract import Capabilities, Isolation
from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID, HostRecord, HostRoom, HostState, HostStatus
from sandyard.engine.e2b.control import api
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.host_metrics import collect_host_metrics
from sandyard.engine.hosts.administration import HostAdministration
from sandyard.engine.hosts.directory import HostDetails, Hosts
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.hosts.machines import StaticMachines
from sandyard.engine.hosts.supply import HostSupply
from sandyard.engine.store.keys import ApiKeys
from sandyard.kit.errors import ConflictError
from sandyard.kit.secret import Secret
from tests.unit.engine.hosts.support import EngineSide, open_engine

KEY = "e2b_key"
CAPABILITIES = Capabilities(
    freeze=True,
    suspend=frozenset(),
    memory_fork=frozenset(),
    live_copy="cow",
    limits=frozenset(),
    egress=True,
    isolation=frozenset([Isolation.NAMESPACE]),
    containers=frozenset(),
    missing={"gvisor": "not installed"},
)


class StaticEvacuations:
    """No host is being emptied, and each has two checkpoints."""

    def find_progress(self, host_id: str) -> None:
        return None

    def list_checkpoint_times(self, host_id: str) -> list[float]:
        return [4.0, 3.0]


@dataclass
class Setup:
    engine: EngineSide
    client: httpx.AsyncClient
    statuses: dict[str, dict[str, Any]]
    administration: HostAdministration


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    with open_engine(tmp_path / "engine") as engine:
        statuses: dict[str, dict[str, Any]] = {}
        local = HostStatus(HostRecord(LOCAL_HOST_ID, "local", "127.0.0.1", 0), HostState.READY, 0.0)

        def get_statuses() -> list[HostStatus]:
            known = [HostStatus(record, HostState.CONNECTING, 5.0) for record in engine.hosts.list_records()]
            return [local, *(replace(item, **statuses.get(item.record.name, {})) for item in known)]

        supply = HostSupply([StaticMachines(engine.hosts)], engine.hosts, engine.enrollment, engine.database)
        administration = HostAdministration(
            engine.database, engine.hosts, get_statuses, engine.enrollment, StaticEvacuations(), supply=supply
        )
        context = Context(None, None, None, None, None, None, None, administration, None)  # type: ignore[arg-type]
        app = api.build_app(context, ApiKeys(engine.database, [Secret(KEY)]))
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(
            transport=transport, base_url="http://engine", headers={"X-API-KEY": KEY}
        ) as client:
            yield Setup(engine, client, statuses, administration)


def add_host(engine: EngineSide, name: str) -> str:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    record, _ = engine.hosts.register(key, HostDetails(name, "10.0.0.2", 3011, {"zone": "a"}), lambda: None)
    return record.id


async def test_hosts_are_listed_with_what_is_known_about_them(setup: Setup) -> None:
    host_id = add_host(setup.engine, "two")
    room = HostRoom(8 << 30, 4 << 30, 100 << 30, 60 << 30, 4, 0.5)
    setup.statuses["two"] = {
        "state": HostState.UNREACHABLE,
        "reason": "it does not answer",
        "version": "1.2",
        "room": room,
        "capabilities": CAPABILITIES,
        "sandboxes": 7,
        "seen_at": 10.0,
    }
    answer = (await setup.client.get("/hosts")).json()
    assert answer["acceptsHosts"] is True
    machine = {"id": host_id, "name": "two", "address": "10.0.0.2", "problem": None}
    assert answer["sources"] == [{"name": "static", "problem": None, "machines": [machine]}]
    local, two = answer["hosts"]
    assert (local["hostID"], local["local"], local["room"], local["certificateExpiresAt"]) == (
        "local",
        True,
        None,
        None,
    )
    assert two == {
        "hostID": host_id,
        "name": "two",
        "local": False,
        "address": "10.0.0.2",
        "port": 3011,
        "labels": {"zone": "a"},
        "draining": False,
        "evacuation": None,
        "lost": False,
        "source": "static",
        "missingFromSource": False,
        "checkpoints": {"count": 2, "oldest": "1970-01-01T00:00:03.000000Z"},
        "state": "unreachable",
        "since": "1970-01-01T00:00:05.000000Z",
        "seenAt": "1970-01-01T00:00:10.000000Z",
        "reason": "it does not answer",
        "version": "1.2",
        "sandboxes": 7,
        "room": {
            "memoryTotal": 8 << 30,
            "memoryAvailable": 4 << 30,
            "diskTotal": 100 << 30,
            "diskFree": 60 << 30,
            "cpuCount": 4,
            "load": 0.5,
            "full": None,
        },
        "isolation": ["namespace"],
        "missing": {"gvisor": "not installed"},
        "joinedAt": two["joinedAt"],
        "certificateExpiresAt": two["certificateExpiresAt"],
    }
    assert (await setup.client.get(f"/hosts/{host_id}")).json() == (await setup.client.get("/hosts/two")).json() == two


async def test_only_with_a_key_of_the_engine(setup: Setup) -> None:
    for method, path in (
        ("GET", "/hosts"),
        ("POST", "/hosts/tokens"),
        ("DELETE", "/hosts/two"),
        ("PATCH", "/hosts/two"),
    ):
        response = await setup.client.request(method, path, headers={"X-API-KEY": "wrong"}, json={})
        assert response.status_code == 401


async def test_a_token_is_created(setup: Setup) -> None:
    response = await setup.client.post("/hosts/tokens", json={"lifetime": 120})
    assert response.status_code == 201
    token = JoinToken.parse(response.json()["token"])
    assert token.address == response.json()["address"] == setup.engine.enrollment.address
    assert (await setup.client.post("/hosts/tokens", json={"lifetime": 1})).status_code == 400


async def test_labels_and_draining_are_changed(setup: Setup) -> None:
    add_host(setup.engine, "two")
    changed = await setup.client.patch("/hosts/two", json={"labels": {"zone": None, "disk": "fast"}, "draining": True})
    assert (changed.json()["labels"], changed.json()["draining"]) == ({"disk": "fast"}, True)
    (record,) = setup.engine.hosts.list_records()
    assert (record.labels, record.draining) == ({"disk": "fast"}, True)
    changed = await setup.client.patch("/hosts/two", json={"draining": False})
    assert (changed.json()["labels"], changed.json()["draining"]) == ({"disk": "fast"}, False)
    assert (await setup.client.patch("/hosts/two", json={"labels": {"a b": "c"}})).status_code == 400
    assert (await setup.client.patch("/hosts/local", json={"draining": True})).status_code == 400
    assert (await setup.client.patch("/hosts/none", json={"draining": True})).status_code == 404


async def test_a_host_with_sandboxes_is_only_removed_with_force(setup: Setup) -> None:
    add_host(setup.engine, "two")
    setup.statuses["two"] = {"sandboxes": 1}
    response = await setup.client.delete("/hosts/two")
    assert (response.status_code, "1 sandbox, which" in response.json()["message"]) == (409, True)
    assert (await setup.client.delete("/hosts/two", params={"force": True})).status_code == 204
    assert (await setup.client.delete("/hosts/two")).status_code == 404
    assert (await setup.client.delete("/hosts/local")).status_code == 400
    assert setup.engine.hosts.list_records() == []


async def test_only_a_host_that_cannot_be_reached_is_lost(setup: Setup) -> None:
    add_host(setup.engine, "two")
    setup.statuses["two"] = {"state": HostState.READY, "sandboxes": 1}
    for name in ("two", "local"):
        refused = await setup.client.post(f"/hosts/{name}/recover")
        assert (refused.status_code, "can be reached" in refused.json()["message"]) == (409, True)
    setup.statuses["two"] = {"state": HostState.CONNECTING}
    assert (await setup.client.post("/hosts/two/recover")).status_code == 409
    setup.statuses["two"] = {"state": HostState.UNREACHABLE, "sandboxes": 1}
    lost = (await setup.client.post("/hosts/two/recover")).json()
    assert (lost["lost"], lost["draining"]) == (True, True)
    (registration,) = Hosts(setup.engine.database, None).list_emptied()
    assert (registration.lost, registration.evacuating) == (True, False), "the next engine goes on"
    refused = await setup.client.delete("/hosts/two")
    assert (refused.status_code, "sandyard host recover" in refused.json()["message"]) == (409, True)
    changed = await setup.client.patch("/hosts/two", json={"draining": False})
    assert changed.json()["lost"] is False
    assert setup.engine.hosts.list_emptied() == []


async def test_hosts_without_a_driver_for_them_are_shown(setup: Setup) -> None:
    add_host(setup.engine, "two")
    unaware = HostAdministration(setup.engine.database, setup.engine.hosts, list)
    (host,) = unaware.list()
    assert host.status.state is HostState.UNREACHABLE
    assert "--join-address" in (host.status.reason or "")


async def test_an_engine_without_a_join_address_creates_no_tokens(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        closed = HostAdministration(engine.database, Hosts(engine.database, None), list)
        assert not closed.accepts_hosts
        with pytest.raises(Exception, match="--join-address"):
            await closed.create_token()


async def test_metrics_have_the_host_as_a_label(setup: Setup) -> None:
    host_id = add_host(setup.engine, "two")
    room = HostRoom(8000, 4000, None, None, 4, 0.5)
    setup.statuses["two"] = {"state": HostState.READY, "room": room, "sandboxes": 7}
    lines = read_metrics(setup)
    labels = f'{{host="{host_id}",name="two"}}'
    assert f"sandyard_engine_host_up{labels} 1.0" in lines
    assert f"sandyard_engine_host_sandboxes{labels} 7.0" in lines
    assert f"sandyard_engine_host_checkpoints{labels} 2.0" in lines
    assert f"sandyard_engine_host_memory_available_bytes{labels} 4000.0" in lines
    assert not any("host_disk" in line for line in lines)  # unknown
    setup.statuses["two"] = {"state": HostState.UNREACHABLE}
    assert f"sandyard_engine_host_up{labels} 0.0" in read_metrics(setup)


def read_metrics(setup: Setup) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)

    class HostCollector(Collector):
        def collect(self) -> Iterator[Metric]:
            return collect_host_metrics("sandyard_engine", setup.administration.list())

    registry.register(HostCollector())
    return generate_latest(registry).decode().splitlines()


async def test_hosts_cannot_be_recovered_by_an_engine_without_hosts(setup: Setup) -> None:
    add_host(setup.engine, "two")
    administration = HostAdministration(setup.engine.database, setup.engine.hosts, list)
    with pytest.raises(ConflictError, match="does not use hosts"):
        await administration.recover("two")
