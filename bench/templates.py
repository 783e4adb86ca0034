"""Builds and what is made of them, beside the same code of the SDK against a server that does nothing."""

from __future__ import annotations

import secrets

from e2b import Sandbox, Template, wait_for_port

from bench.measures import create_to_output, timed
from bench.processes import Endpoint, settle
from bench.report import Row, median

PORT = 8000
WARM = 3


def low(rounds: int) -> dict[str, float]:
    """Measure the floors, against the server that the environment names."""
    build("floor")
    create_to_output(WARM)
    few = max(5, rounds // 10)
    return {"build": median(builds("floor", few)), "create": median(create_to_output(few))}


def measure(endpoint: Endpoint, rounds: int, floors: dict[str, float]) -> list[Row]:
    name = f"bench-{secrets.token_hex(4)}"
    few = max(5, rounds // 10)
    build(name)
    cached = median(builds(name, few))
    server = f"{name}-server"
    command = f"python3 -m http.server {PORT}"
    Template.build(Template().from_base_image().set_start_cmd(command, wait_for_port(PORT)), server)
    require_running(server)
    create_to_output(WARM, server)
    settle(endpoint)
    started = median(create_to_output(few, server))
    return [
        Row("template build, all of it cached, p50", cached, "ms", floors["build"], None),
        Row("create → first output, with a start command, p50", started, "ms", floors["create"], None),
    ]


def build(name: str) -> None:
    described = Template().from_base_image().run_cmd("echo one > ~/one").set_envs({"A": "1"})
    Template.build(described.run_cmd(["echo two > ~/two", "echo three > ~/three"]).set_workdir("/home/user"), name)


def builds(name: str, count: int) -> list[float]:
    """Measure repeated builds of the same unchanged description."""
    return [timed(lambda: build(name)) for _ in range(count)]


def require_running(template: str) -> None:
    """Raise an error if the server in the sandbox does not run: such a sandbox is created too quickly to count."""
    sandbox = Sandbox.create(template, timeout=60)
    try:
        assert "Directory listing" in sandbox.commands.run(f"curl -s localhost:{PORT}").stdout
    finally:
        sandbox.kill()
