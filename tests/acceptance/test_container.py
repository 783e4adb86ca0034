"""Run the steps of deploy/container/Containerfile and its command on a bare machine with the same distribution. Neither the
program that builds images nor the layers of the published base image are part of this: no registry is reached."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.bare_machine import DEBIAN_13, BareMachine
from tests.harness.bare_machine_client import run_in_sandbox, wait_until_ready
from tests.harness.containerfile import read_containerfile
from tests.harness.wheel import build_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[BareMachine]:
    machine = BareMachine(DEBIAN_13)
    try:
        shutil.copy(build_wheel(tmp_path), machine.root / "tmp")
        yield machine
    finally:
        machine.close()


def test_the_image_serves_sandboxes(machine: BareMachine) -> None:
    image = read_containerfile()
    assert image.base == "debian:13"
    for step in image.list_arguments("RUN"):
        machine.run(["sh", "-c", step], online=True)
    machine.run(["sh", "-c", "rm -rf /var/lib/sandyard/templates; mv /usr/bin/mmdebstrap /usr/bin/no-mmdebstrap"])
    command = [*image.command, "--port", "0", "--pool-size", "1"]
    with machine.running(command) as up:  # without mmdebstrap, it does not begin to build the default template
        login = wait_until_ready(machine, up)
        assert re.search(r"uid=1000\(user\)", run_in_sandbox(machine, "root", login, "id"))
        assert not [line for line in up.lines if line.startswith("Optional, for sandboxes with a kernel of their own")]
