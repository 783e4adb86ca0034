"""A Compose stack in a sandbox of the template `docker`, and the tests that hold at every level of isolation.

The test modules define the fixture `stack` for a level and import the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import CommandExitException, Sandbox, SandboxException

from tests.harness.engine import Engine

IMAGE = "stack_db"
STACK = "/home/user/stack"
# The sandbox's own system as an image, because tests reach no registry
DOCKERFILE = """
FROM scratch
ADD root.tar /
RUN mkdir -p /tmp /run && chmod 1777 /tmp && apt-get -q update && \\
    DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends postgresql redis-server
ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
"""
LEFT_OUT = (
    *(
        "dev",
        "home",
        "opt",
        "proc",
        "root",
        "run",
        "sys",
        "tmp",
        "usr/lib/gcc",
        "usr/lib/git-core",
        "usr/local",
        "usr/share/doc",
    ),
    *("var/lib/docker", "usr/bin/docker*", "usr/bin/containerd*", "usr/sbin/dockerd"),
)
COMPOSE = """
version: "3"
services:
  db:
    build: ./image
    user: postgres
    command: >
      sh -c "bin=$$(echo /usr/lib/postgresql/*/bin) && $$bin/initdb -D /tmp/db -A trust &&
      echo host all all all trust >> /tmp/db/pg_hba.conf &&
      exec $$bin/postgres -D /tmp/db -c listen_addresses='*' -c unix_socket_directories=/tmp"
    healthcheck: {test: ["CMD", "pg_isready", "-h", "127.0.0.1"], interval: 1s, retries: 60}
  cache:
    image: stack_db
    user: redis
    command: redis-server --bind 0.0.0.0 --protected-mode no --save ""
    depends_on: [db]
    ports: ["6379:6379"]
  web:
    image: stack_db
    command: sh -c "echo from a container > /tmp/page && cd /tmp && exec python3 -m http.server 8000"
    ports: ["8000:8000"]
    depends_on: [db]
"""
TESTCONTAINERS = f'''
import urllib.request
from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import wait_for_logs

def test_a_server() -> None:
    server = DockerContainer("{IMAGE}").with_command("python3 -u -m http.server 9000").with_exposed_ports(9000)
    with server:
        wait_for_logs(server, "Serving HTTP", timeout=60)
        address = f"http://{{server.get_container_host_ip()}}:{{server.get_exposed_port(9000)}}/"
        assert urllib.request.urlopen(address, timeout=20).status == 200
        assert server.exec(["echo", "inside"]).output == b"inside\\n"
'''
DOWNLOAD = "curl -sS -o /dev/null --max-time 20 http://deb.debian.org/debian/"

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="containers need an engine that runs as root")


def run(sandbox: Sandbox, command: str, timeout: float = 120, **options: Any) -> str:
    try:
        return sandbox.commands.run(command, timeout=timeout, **options).stdout
    except CommandExitException as error:
        pytest.fail(f"{command}\n{error.stdout[-2000:]}\n{error.stderr[-2000:]}")


def retry(sandbox: Sandbox, command: str) -> str:
    return run(sandbox, f"for try in $(seq 60); do {command} && exit; sleep 1; done; exit 1")


def create_stack(engine: Engine, metadata: dict[str, str]) -> Iterator[Sandbox]:
    """Yield a sandbox in which a Compose stack runs, from images that were built in it."""
    environment = {**os.environ, **{f"SANDYARD_{name}": value for name, value in engine.settings.items()}}
    subprocess.run([sys.executable, "-m", "sandyard.engine.templates", "build", "docker"], check=True, env=environment)
    deadline = time.monotonic() + 60
    while True:
        try:
            sandbox = Sandbox.create("docker", timeout=1800, metadata=metadata)
            break
        except SandboxException as error:  # the engine finds a new template after a few seconds
            if "is being built" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    sandbox.files.write(f"{STACK}/image/Dockerfile", DOCKERFILE)
    sandbox.files.write(f"{STACK}/docker-compose.yml", COMPOSE)
    options = " ".join(f"--exclude='./{path}'" for path in LEFT_OUT)
    run(sandbox, f"sudo tar -C / -c --one-file-system {options} . > {STACK}/image/root.tar")
    run(sandbox, f"cd {STACK} && docker compose build && rm image/root.tar && docker compose up -d", timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
@root_only
def test_a_compose_stack_runs_and_its_ports_are_ports_of_the_sandbox(stack: Sandbox) -> None:
    compose = f"cd {STACK} && docker compose"
    retry(stack, f"{compose} exec -T db pg_isready -h 127.0.0.1")
    assert run(stack, f"{compose} exec -T web psql -h db -U postgres -Atc 'select 6 * 7'") == "42\n"
    assert run(stack, f"{compose} exec -T web redis-cli -h cache set key value") == "OK\n"
    assert run(stack, "printf 'GET key\\r\\nQUIT\\r\\n' | nc -q 5 127.0.0.1 6379").split() == ["$5", "value", "+OK"]
    retry(stack, "curl -fsS http://127.0.0.1:8000/page")
    preview = {"E2b-Sandbox-Id": stack.sandbox_id, "E2b-Sandbox-Port": "8000"}
    with httpx.Client(base_url=os.environ["E2B_SANDBOX_URL"], timeout=30) as client:
        assert client.get("/page", headers=preview).text == "from a container\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@root_only
def test_containers_share_files_and_ids_with_the_sandbox(stack: Sandbox) -> None:
    run(stack, "mkdir -p shared && echo mine > shared/mine")
    shared = "docker run --rm -v $HOME/shared:/shared"
    run(stack, f"{shared} --user $(id -u):$(id -g) {IMAGE} sh -c 'cat /shared/mine > /shared/copy'")
    assert run(stack, "stat -c %U shared/copy; cat shared/copy") == "user\nmine\n"
    run(stack, f"{shared} {IMAGE} chown nobody /shared/copy")
    assert run(stack, "stat -c %U shared/copy; sudo rm -r shared") == "nobody\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@root_only
def test_testcontainers_works(stack: Sandbox) -> None:
    stack.files.write("tc/test_server.py", TESTCONTAINERS)
    run(stack, "python3 -m venv tc/venv && tc/venv/bin/pip -q install testcontainers pytest", timeout=300)
    # its Ryuk, an image on Docker Hub, removes what a killed test left behind
    output = run(stack, "cd tc && venv/bin/pytest -q test_server.py", envs={"TESTCONTAINERS_RYUK_DISABLED": "true"})
    assert "1 passed" in output


@pytest.mark.slow
@pytest.mark.timeout(900)
@root_only
def test_containers_continue_after_a_pause(stack: Sandbox) -> None:
    name = run(stack, f"docker run -d {IMAGE} sh -c 'echo started; exec sleep 3600'").strip()
    stack.pause()
    stack.connect(timeout=1800)
    assert run(stack, f"docker logs {name}; docker inspect -f '{{{{.State.Running}}}}' {name}") == "started\ntrue\n"
    run(stack, f"docker rm -f {name}")
