"""Docker in gVisor sandboxes: what `test_docker.py` tests for namespaces, and what differs."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2b import CommandExitException, Sandbox

from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.kit.errors import UnsupportedError
from tests.harness.engine import Engine
from tests.protocol.conftest import NewSandbox
from tests.protocol.docker_stack import (
    DOWNLOAD,
    IMAGE,
    STACK,
    create_stack,
    retry,
    root_only,
    run,
    test_a_compose_stack_runs_and_its_ports_are_ports_of_the_sandbox,
    test_containers_continue_after_a_pause,
    test_containers_share_files_and_ids_with_the_sandbox,
    test_testcontainers_works,
)

__all__ = [
    "test_a_compose_stack_runs_and_its_ports_are_ports_of_the_sandbox",
    "test_containers_continue_after_a_pause",
    "test_containers_share_files_and_ids_with_the_sandbox",
    "test_testcontainers_works",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    root_only,
]

LEVEL = {"sandyard.isolation": "gvisor"}
TINY = "tiny"
MAKE_TINY_IMAGE = f"""
mkdir -p tiny/bin tiny/etc && echo root:x:0:0::/:/bin/sh > tiny/etc/passwd &&
for name in sh cat echo ls sleep id curl; do
  program=$(readlink -f $(which $name)) && cp $program tiny/bin/$name &&
  for library in $(ldd $program | grep -o '/[^ ]*'); do mkdir -p tiny/$(dirname $library) && cp -Ln $library tiny/$library; done
done
cp -L /lib/*/libnss_dns.so.2 tiny/lib/*/ && sudo tar -C tiny -c . | docker import - {TINY}
"""


@pytest.fixture(scope="module")
def stack(engine: Engine) -> Iterator[Sandbox]:
    try:
        Runsc.find()
    except UnsupportedError as error:
        pytest.skip(error.message)
    yield from create_stack(engine, LEVEL)


def test_health_checks_and_exec(stack: Sandbox) -> None:
    retry(
        stack,
        f"cd {STACK} && docker inspect -f '{{{{.State.Health.Status}}}}' $(docker compose ps -q db) | grep -x healthy",
    )
    name = run(stack, f"docker run -d --ulimit core=-1 {IMAGE} sleep 3600").strip()
    assert (
        run(stack, f"docker exec -u nobody -w /tmp -e A=b {name} sh -c 'id -un; pwd; echo $A'") == "nobody\n/tmp\nb\n"
    )
    assert run(stack, f"echo piped | docker exec -i {name} cat") == "piped\n"
    assert run(stack, f"docker exec {name} sh -c 'echo $HOME'") == "/root\n"
    assert "terminal" in run(
        stack, f"script -qc 'docker exec -it {name} sh -c \"test -t 0 && echo terminal\"' /dev/null"
    )
    assert run(stack, f"docker exec {name} sh -c 'exit 7' || echo $?") == "7\n"
    with pytest.raises(CommandExitException, match="code 126"):
        stack.commands.run(f"docker exec {name} missing-program")
    granted = run(stack, f"docker exec {name} grep CapEff /proc/self/status").split()[1]
    assert granted == run(stack, f"docker run --rm {IMAGE} grep CapEff /proc/self/status").split()[1]
    run(stack, f"docker exec -d {name} sleep 4321; pgrep -f 'sleep 4321'")
    run(stack, f"docker rm -f {name}")
    assert run(stack, "pgrep -fx 'sleep 4321' || echo ended") == "ended\n"


def test_the_network_policy_applies_to_containers(stack: Sandbox, new_sandbox: NewSandbox) -> None:
    run(stack, f"docker run --rm {IMAGE} {DOWNLOAD}")
    closed = new_sandbox("docker", metadata=LEVEL, allow_internet_access=False, timeout=300)
    run(closed, MAKE_TINY_IMAGE)
    assert run(closed, f"docker run --rm {TINY} echo offline") == "offline\n"
    for options in ("", "--network host", "--privileged --network host"):
        with pytest.raises(CommandExitException, match="curl"):
            closed.commands.run(f"docker run --rm {options} {TINY} {DOWNLOAD}", timeout=120)


def test_forks_and_snapshots_have_the_files_but_no_images(
    stack: Sandbox, new_sandbox: NewSandbox, api: httpx.Client
) -> None:
    """Docker's files are in the memory of gVisor's kernel."""
    run(stack, "echo kept > kept")
    refused = api.post(f"/sandboxes/{stack.sandbox_id}/fork", json={"memory": True})
    assert refused.status_code == 501 and "networks of containers" in refused.json()["message"]
    (fork,) = stack.fork(timeout=120)
    assert isinstance(fork, Sandbox), fork
    try:
        assert run(fork, "cat kept; docker image ls -q") == "kept\n"
    finally:
        fork.kill()
    copy = new_sandbox(stack.create_snapshot().snapshot_id, timeout=120)
    assert run(copy, "cat kept; docker image ls -q") == "kept\n"
    assert IMAGE in run(stack, "docker image ls")


def test_docker_can_be_restarted(stack: Sandbox) -> None:
    run(stack, "sudo pkill -x dockerd; while pgrep -x dockerd; do sleep 0.1; done", timeout=60)
    assert IMAGE in retry(stack, "docker image ls")
    assert run(stack, f"docker run --rm -p 8111:80 {IMAGE} echo again") == "again\n"


def test_a_gvisor_sandbox_without_containers_has_no_docker(new_sandbox: NewSandbox) -> None:
    plain = new_sandbox("docker", metadata={**LEVEL, "sandyard.containers": "false"})
    assert run(plain, "ls /run/docker.sock 2>/dev/null || echo none") == "none\n"
    with pytest.raises(CommandExitException):
        plain.commands.run("sudo mount -t tmpfs none /mnt")
