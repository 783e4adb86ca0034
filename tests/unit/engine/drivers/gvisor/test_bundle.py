from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.contract import Limits, Mount
from sandyard.engine.drivers.gvisor.bundle import make_spec
from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.engine.drivers.machine.runtime import StartPlan
from sandyard.kit.errors import InvalidInputError


def make(*mounts: Mount, containers: bool) -> dict[str, Any]:
    plan = StartPlan("one", 1, (), Limits(disk_mb=100), None, mounts, containers=containers)
    path = Path("/x")
    return make_spec(
        plan, root=path, netns=path, agent=path, volumes=path, containers=Path("/store/one"), disk_limited=True
    )


def test_only_sandboxes_with_containers_get_more_capabilities_and_files() -> None:
    plain, spec = make(containers=False), make(containers=True)
    more = set(spec["process"]["capabilities"]["bounding"]) - set(plain["process"]["capabilities"]["bounding"])
    assert more >= {"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN"}
    assert [mount["destination"] for mount in spec["mounts"] if mount not in plain["mounts"]] == ["/var/lib/docker"]
    assert plain["annotations"] == {} and "container_service" not in json.loads(plain["process"]["args"][-1])
    assert spec["annotations"]["dev.gvisor.spec.mount.containers.source"] == "/store/one"
    assert spec["annotations"]["dev.gvisor.spec.mount.containers.options"] == "rw,size=100m"


def test_a_volume_that_would_be_hidden_by_the_files_of_containers_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="cannot be mounted at /var/lib/docker"):
        make(Mount("vol", "/var/lib/docker/"), containers=True)
    make(Mount("vol", "/var/lib/docker/volumes"), containers=True)
    make(Mount("vol", "/var/lib/docker"), containers=False)


def test_raw_sockets_are_for_containers_only() -> None:
    runsc = Runsc(Path("/runsc"), "1")
    assert "--net-raw" not in runsc.build_command(Path("/state"), "run")
    assert "--net-raw" in runsc.build_command(Path("/state"), "run", containers=True)
