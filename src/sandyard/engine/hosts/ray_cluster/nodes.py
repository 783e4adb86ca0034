"""The command that starts Ray, with fixed ports, on one machine of a Ray cluster that only starts Sandyard's hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sandyard.engine.hosts.ray_cluster.messages import RESOURCE
from sandyard.kit.python import make_python_command

HEAD_PORT = 6379
FIRST_PORT, LAST_PORT = 6379, 6499
"""All ports that Ray listens on are in this range: a firewall needs it, because Ray listens on every address of the machine."""
_PORTS = {
    "node-manager-port": 6380,
    "object-manager-port": 6381,
    "runtime-env-agent-port": 6382,
    "dashboard-agent-grpc-port": 6383,
    "dashboard-agent-listen-port": 6384,
    "metrics-export-port": 6385,
    "min-worker-port": 6400,
    "max-worker-port": LAST_PORT,
}
OBJECT_STORE_BYTES = 100_000_000


def make_start_command(address: str, *, head: str | None, runs_sandboxes: bool, extra: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a node of Ray until it fails.

    `address`: the one at which other nodes reach it. `head`: ADDRESS:PORT of the cluster's head; None if this node is the head.
    `extra`: more options of `ray start`, which override the others.
    """
    options = {
        "node-ip-address": address,
        "num-cpus": 0,  # otherwise Ray starts idle workers for its tasks; keepers need no CPU
        "object-store-memory": OBJECT_STORE_BYTES,
        **_PORTS,
        **({"port": HEAD_PORT, "include-dashboard": "false"} if head is None else {"address": head}),
        **({"resources": json.dumps({RESOURCE: 1})} if runs_sandboxes else {}),
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    role = ["--head"] if head is None else []
    return make_python_command(
        "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *role, *arguments, *extra
    )
