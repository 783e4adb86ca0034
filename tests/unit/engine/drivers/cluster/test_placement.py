"""Test the placement of new sandboxes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandyard.engine.contract import Capabilities, Isolation
from sandyard.engine.drivers.cluster.model import HostRecord, HostRoom, HostState, PlacementRequest
from sandyard.engine.drivers.cluster.placement import MIB, Candidate, Reserves, place
from sandyard.kit.errors import FullError, InvalidInputError, UnreachableError, UnsupportedError

RESERVES = Reserves(memory_mb=512, disk_mb=1024)
BOTH = frozenset(Isolation)
ROOM = HostRoom(10_000 * MIB, 5_000 * MIB, 100_000 * MIB, 50_000 * MIB, 4, 0.0)
REQUEST = PlacementRequest(512, Isolation.NAMESPACE, containers=False, layers=("snap:one", "tpl:base/1"))


def make_host(name: str, **options: Any) -> Candidate:
    labels, draining = options.pop("labels", {}), options.pop("draining", False)
    isolation = options.pop("isolation", BOTH)
    known = Capabilities(
        True, frozenset(), frozenset(), "cow", frozenset(), True, isolation, isolation, {"gvisor": "runsc is missing"}
    )
    room = replace(ROOM, **options.pop("room", {}))
    defaults: dict[str, Any] = {"layers": REQUEST.layers, "sandboxes": 0, "arriving": 0, "reason": None}
    record = HostRecord(name, name, "10.0.0.1", 1, labels, draining)
    state = options.pop("state", HostState.READY)
    return Candidate(record, state, room=room, capabilities=known, **{**defaults, **options})


def choose(*hosts: Candidate, **changes: Any) -> list[str]:
    return list(place(replace(REQUEST, **changes), hosts, RESERVES).hosts)


def test_the_host_with_most_memory_comes_first() -> None:
    little, much = make_host("a", room={"memory_available": 3_000 * MIB}), make_host("b")
    assert choose(little, much) == ["b", "a"]


def test_sandboxes_that_are_not_reported_yet_count() -> None:
    assert choose(make_host("a", arriving=10), make_host("b")) == ["b", "a"]
    plenty = {"memory_available": 8_000 * MIB}
    busy = make_host("b", sandboxes=1, room={"memory_available": 9_000 * MIB})
    assert choose(make_host("a", room=plenty), busy) == ["a", "b"], (
        "a host with half of its memory available has enough"
    )
    assert choose(make_host("a", sandboxes=5), make_host("b", sandboxes=4)) == ["b", "a"]
    with pytest.raises(FullError):
        choose(make_host("a", room={"memory_available": 600 * MIB}, arriving=2))


def test_hosts_that_have_the_layers_come_first() -> None:
    lacking, having = make_host("a", layers=()), make_host("b", sandboxes=100, room={"memory_available": 2_000 * MIB})
    placement = place(REQUEST, [lacking, having], RESERVES)
    assert (placement.hosts, placement.lacking) == (["b", "a"], ["a"])
    better = place(REQUEST, [make_host("a", layers=(), sandboxes=1), make_host("b")], RESERVES)
    assert (better.hosts, better.lacking) == (["b", "a"], [])
    nowhere = place(REQUEST, [make_host("a", layers=()), make_host("b", layers=())], RESERVES)
    assert (nowhere.hosts, nowhere.lacking) == (["a", "b"], []), "the first one gets them when it is asked"


def test_isolation_and_containers_must_be_available() -> None:
    weak, strong = make_host("a", isolation=frozenset([Isolation.NAMESPACE])), make_host("b", sandboxes=9)
    assert choose(weak, strong, isolation=Isolation.GVISOR) == ["b"]
    assert choose(weak, strong, isolation=Isolation.GVISOR, containers=True) == ["b"]
    with pytest.raises(UnsupportedError, match="a: it does not support the isolation level gvisor: runsc is missing"):
        choose(weak, isolation=Isolation.GVISOR)


def test_only_hosts_with_the_labels_or_the_requested_id_are_chosen() -> None:
    plain, labelled = make_host("a"), make_host("b", labels={"disk": "ssd"}, sandboxes=9)
    assert choose(plain, labelled, labels={"disk": "ssd"}) == ["b"]
    assert choose(plain, labelled, host_id="b") == ["b"]
    with pytest.raises(InvalidInputError, match="disk=hdd"):
        choose(plain, labelled, labels={"disk": "hdd"})
    with pytest.raises(UnreachableError, match="not registered"):
        choose(plain, host_id="gone")


def test_draining_hosts_get_only_what_belongs_there() -> None:
    draining = make_host("a", draining=True)
    assert choose(draining, make_host("b", sandboxes=9)) == ["b"]
    assert choose(draining, host_id="a") == ["a"]


def test_the_error_says_why_each_host_refuses() -> None:
    hosts = [
        make_host("a", room={"memory_available": 100 * MIB}),
        make_host("b", room={"disk_free": 10 * MIB}),
        make_host("c", room={"full": "There are no free slots."}),
        make_host("d", state=HostState.UNREACHABLE, reason="it does not answer"),
        make_host("e", draining=True),
    ]
    with pytest.raises(FullError) as raised:
        choose(*hosts)
    assert raised.value.message == (
        "No host can take the sandbox. a: 100 MiB of its memory are available and 512 MiB are reserved; b: 10 MiB of its disk "
        "are free and 1024 MiB are reserved; c: There are no free slots; d: it is unreachable: it does not answer; e: it is being "
        "drained."
    )
    with pytest.raises(UnreachableError, match="d: it is unreachable"):
        choose(hosts[3])
