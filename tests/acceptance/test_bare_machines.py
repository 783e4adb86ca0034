"""Test an installation from the wheel on machines with nothing but Python and git: it runs real sandboxes immediately, and names
what is missing and the command that installs it."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.bare_machine import DEBIAN_12, DEBIAN_13, UBUNTU_24, USER, BareMachine
from tests.harness.bare_machine_client import run_in_sandbox, wait_until_ready
from tests.harness.wheel import build_wheel
from tests.proof.record import record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
PACKAGES_OF_ROOT = {"mmdebstrap", "btrfs-progs"}
PROJECT = """
set -e
git init --quiet --initial-branch main "$1"; cd "$1"
git config user.name A; git config user.email a@example.com
echo hello > README.md; git add .; git commit --quiet --message first
"""


@pytest.fixture(scope="module", params=[DEBIAN_12, DEBIAN_13, UBUNTU_24], ids=lambda distribution: distribution.suite)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareMachine]:
    """A machine of the distribution with the wheel installed by pip."""
    machine = BareMachine(request.param)
    try:
        wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
        shutil.copy(wheel, machine.root / "tmp")
        machine.run(["python3", "-m", "venv", "/opt/sandyard"])
        machine.run(["/opt/sandyard/bin/pip", "install", "--quiet", f"/tmp/{wheel.name}"], online=True)
        yield machine
    finally:
        machine.close()


def test_root_gets_sandboxes_and_a_task_at_once(machine: BareMachine) -> None:
    with machine.running(["sandyard", "up", "--port", "0", "--pool-size", "1"]) as up:
        login = wait_until_ready(machine, up)
        missing = up.wait_for_line(r"^Missing packages: (.*)\.$")[1]
        assert set(re.findall(r"(\S+) \(", missing)) >= PACKAGES_OF_ROOT, missing
        command = up.wait_for_line(r"^To install them: (apt-get install .*), then start Sandyard again")[1]
        assert set(shlex.split(command)) >= PACKAGES_OF_ROOT
        assert "uid=1000(user)" in run_in_sandbox(machine, "root", login, "id")
        machine.run(["sh", "-c", PROJECT, "_", "/srv/project"])
        task = ["sandyard", "run", "create NOTES.md: from a bare machine", "--repo", "/srv/project"]
        machine.run(task, **login)
        branches = machine.run(["git", "-C", "/srv/project", "branch", "--all", "--format", "%(refname)"])
        (branch,) = set(branches.split()) - {"refs/heads/main"}
        notes = machine.run(["git", "-C", "/srv/project", "show", f"{branch}:NOTES.md"])
        assert notes.strip() == "from a bare machine"
    record({"bare machines": 1})


def test_another_user_gets_sandboxes_and_is_told_what_they_lack(machine: BareMachine) -> None:
    with machine.running(["sandyard", "up", "--port", "0", "--pool-size", "1"], user=USER) as up:
        login = wait_until_ready(machine, up)
        up.wait_for_line(r"^Without root, .*no network of their own.*: sudo /opt/sandyard/bin/sandyard up;")
        up.wait_for_line(r"^To install them: sudo apt-get install .* uidmap, then start Sandyard again")
        assert "uid=0(root)" in run_in_sandbox(machine, USER, login, "id")


def test_what_is_missing_can_be_installed(machine: BareMachine) -> None:
    machine.run(["sandyard", "setup", "packages", "gvisor", "criu"], online=True)
    assert "No package is missing." in machine.run(["sandyard", "setup"])
    report = machine.run(["sandyard", "doctor"])
    assert "To install missing packages" not in report
    assert "CRIU is not installed" not in report, "whether it works here depends on the kernel and root's capabilities"
    for name in ("disk limit", "internet", "gVisor", "mmdebstrap"):
        assert re.search(rf"^  ok +{name}", report, re.MULTILINE), report


@pytest.mark.parametrize("installer", ["uv", "pipx"])
def test_uvx_and_pipx_run_the_wheel(machine: BareMachine, installer: str) -> None:
    (wheel,) = (path.name for path in Path(machine.root, "tmp").glob("sandyard-*.whl"))
    folder = f"/tmp/{installer}"
    machine.run(["python3", "-m", "venv", folder], user=USER)
    machine.run([f"{folder}/bin/pip", "install", "--quiet", installer], user=USER, online=True)
    commands = {"uv": ["uvx", "--from", f"/tmp/{wheel}"], "pipx": ["pipx", "run", "--spec", f"/tmp/{wheel}"]}
    program, *options = commands[installer]
    report = machine.run([f"{folder}/bin/{program}", *options, "sandyard", "doctor"], user=USER, online=True)
    assert "Sandboxes can run here." in report
