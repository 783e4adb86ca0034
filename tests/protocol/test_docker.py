"""Docker in sandboxes of the template `docker`: Compose, builds, Testcontainers, published ports, and the network policy."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2b import CommandExitException, Sandbox, SandboxException

from tests.harness.engine import Engine
from tests.protocol.conftest import NewSandbox
from tests.protocol.docker_stack import (
    DOWNLOAD,
    IMAGE,
    create_stack,
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

KEY = "sandyard.containers"


@pytest.fixture(scope="module")
def stack(engine: Engine) -> Iterator[Sandbox]:
    yield from create_stack(engine, {"sandyard.isolation": "namespace"})


@pytest.mark.slow
@pytest.mark.timeout(900)
@root_only
def test_the_network_policy_applies_to_containers_and_copies_keep_images(
    stack: Sandbox, new_sandbox: NewSandbox
) -> None:
    run(stack, f"docker run --rm {IMAGE} {DOWNLOAD}")
    snapshot = stack.create_snapshot()
    closed = new_sandbox(snapshot.snapshot_id, allow_internet_access=False, timeout=300)
    for command in (
        DOWNLOAD,
        f"docker run --rm {IMAGE} {DOWNLOAD}",
        f"docker run --rm --network host {IMAGE} {DOWNLOAD}",
    ):
        with pytest.raises(CommandExitException, match="curl"):
            closed.commands.run(command, timeout=120)
    assert run(closed, f"docker run --rm {IMAGE} echo offline") == "offline\n"


@root_only
def test_a_sandbox_can_ask_for_containers_and_others_have_none(new_sandbox: NewSandbox, api: httpx.Client) -> None:
    nested = "unshare -Urmnpf --mount-proc sh -c 'mount -t tmpfs none /mnt && echo mounted'"
    sandbox = new_sandbox(metadata={KEY: "true"})
    assert run(sandbox, nested) == "mounted\n"
    assert api.get(f"/sandboxes/{sandbox.sandbox_id}").json()["containers"] is True
    plain = new_sandbox()
    assert api.get(f"/sandboxes/{plain.sandbox_id}").json()["containers"] is False
    with pytest.raises(CommandExitException):
        plain.commands.run(nested)


def test_a_value_that_is_not_a_boolean_is_refused(new_sandbox: NewSandbox) -> None:
    with pytest.raises(SandboxException, match=r"The metadata sandyard.containers is 'on'\. Use true or false"):
        new_sandbox(metadata={KEY: "on"})
