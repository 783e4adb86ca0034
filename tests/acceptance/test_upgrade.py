"""Test an upgrade from the version before, as docs/operating.md describes it: backup, trial on a copy, upgrade of the installed package
with sandboxes and tasks kept, and going back to the version before."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.harness.engine import SCRATCH
from tests.harness.platform import ok, until
from tests.harness.processes import ROOT, Running
from tests.harness.up import Installation, run_json
from tests.harness.upstream_repository import Upstream
from tests.harness.wheel import build_wheel
from tests.proof.record import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes with all features need root"),
]
MIGRATIONS = "src/sandyard/platform/db/migrations/versions"
TASK = "Ask first\nask: which one?\ncreate NOTES.md: answered"
START_SLEEP = "nohup sleep 100000 >/dev/null 2>&1 & echo $! > pid; echo kept > work.txt"
CHECK_SLEEP = "kill -0 $(cat pid) && cat work.txt"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def find_previous_version() -> str:
    """Return the newest release, or without one, the commit before the newest migration."""
    if not (ROOT / ".git").exists() or git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("needs a clone with its history")
    head = git("rev-parse", "HEAD")
    for tag in git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname").splitlines():
        if git("rev-parse", f"{tag}^{{commit}}") != head:
            return tag
    return git("log", "--diff-filter=A", "-1", "--format=%H", "--", MIGRATIONS) + "^"


def list_migrations(version: str) -> set[str]:
    return set(git("ls-tree", "--name-only", version, f"{MIGRATIONS}/").splitlines())


@dataclass
class Package:
    """An environment in which one version is installed. The dependencies are those of the tests."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def create(self) -> None:
        venv.create(self.folder, with_pip=False, symlinks=True)
        variables = {"base": str(self.folder), "platbase": str(self.folder)}
        packages = Path(sysconfig.get_path("purelib", "venv", vars=variables))
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", self.python]
        subprocess.run([*pip, "install", "--no-index", "--no-deps", "--force-reinstall", str(wheel)], check=True)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    created = Path(tempfile.mkdtemp(prefix="sandyard-upgrade-", dir=SCRATCH))
    created.chmod(0o755)
    yield created
    shutil.rmtree(created)


@pytest.fixture(scope="module")
def wheels(folder: Path) -> tuple[Path, Path]:
    """The wheels of the previous version and of this one."""
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", find_previous_version()], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    return build_wheel(folder / "old", source), build_wheel(folder / "new")


@pytest.fixture
def package(folder: Path, wheels: tuple[Path, Path]) -> Package:
    created = Package(folder / "venv")
    created.create()
    created.install(wheels[0])
    return created


@pytest.fixture
def installation(package: Package) -> Iterator[Installation]:
    running = Installation(python=package.python)
    yield running
    running.stop()


def stop(installation: Installation) -> None:
    installation.up.process.send_signal(signal.SIGTERM)
    installation.up.wait_for_exit()


def create_sandbox(installation: Installation) -> str:
    sandbox = str(run_json(installation, "sandbox", "create")["id"])
    installation.ok("sandbox", "exec", sandbox, "--", "sh", "-c", START_SLEEP)
    return sandbox


def start_on(package: Package, data: Path, *options: str) -> Running:
    """Run `sandyard up` on another data directory, without an engine and thus without sandboxes."""
    command = [package.python, "-m", "sandyard", "up", "--engine", "none", "--port", "0", "--data-dir", str(data)]
    return Running([*command, *options], str(data), {"E2B_API_KEY": ""})


def run_package(package: Package, *arguments: str) -> None:
    command = [package.python, "-m", "sandyard", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)


def has_question(installation: Installation, task: str) -> bool:
    headers = {"Authorization": f"Bearer {installation.token}"}
    query = {"taskId": task, "status": "pending"}
    return bool(ok(httpx.get(f"{installation.url}/api/v1/asks", params=query, headers=headers))["items"])


def test_an_upgrade_keeps_sandboxes_and_tasks_and_can_be_undone(
    installation: Installation, package: Package, wheels: tuple[Path, Path], folder: Path, tmp_path: Path
) -> None:
    old, new = wheels
    migrates = list_migrations(find_previous_version()) != list_migrations("HEAD")
    upstream = Upstream(tmp_path)
    run_json(installation, "project", "add", "site", "--repository", str(upstream.bare))
    task = run_json(installation, "task", "add", TASK, "--project", "site", "--agent", "demo")["id"]
    running, paused = create_sandbox(installation), create_sandbox(installation)
    installation.ok("sandbox", "pause", paused)
    until(lambda: has_question(installation, task), 120)

    backup, data = folder / "backup.age", str(installation.data)
    run_package(package, "backup", str(backup), "--data-dir", data, "--no-encryption")
    stop(installation)

    # the trial: the new version migrates a copy
    package.install(new)
    trial = folder / "trial"
    run_package(package, "restore", str(backup), "--data-dir", str(trial))
    with_copy = start_on(package, trial)
    with_copy.wait_for_line(r"^Sandyard is at ", seconds=120)
    assert migrates == any("database_migrated" in line for line in with_copy.lines)
    with_copy.process.send_signal(signal.SIGTERM)
    with_copy.wait_for_exit()
    with_copy.close()

    # the upgrade
    installation.start()
    assert migrates == any("database_migrated" in line for line in installation.up.lines)
    for sandbox in (running, paused):
        assert installation.ok("sandbox", "exec", sandbox, "--", "sh", "-c", CHECK_SLEEP) == "kept\n"
    installation.ok("task", "answer", task, "this one")
    until(lambda: run_json(installation, "task", "show", task)["status"] == "in_review", 120)
    (branch,) = set(upstream.git("branch", "--format", "%(refname:short)", at=upstream.bare).split()) - {"main"}
    assert upstream.git("show", f"{branch}:NOTES.md", at=upstream.bare).strip() == "answered"
    installation.kill_sandboxes()
    stop(installation)

    # going back
    package.install(old)
    if migrates:
        refused = start_on(package, installation.data)
        refused.wait_for_line(r"newer version", seconds=60)
        refused.process.send_signal(signal.SIGTERM)
        refused.wait_for_exit()
        refused.close()
    before = folder / "before"
    run_package(package, "restore", str(backup), "--data-dir", str(before))
    restored = start_on(package, before)
    url = restored.wait_for_line(r"^Sandyard is at (http://\S+);", seconds=120)[1]
    shown = installation.run("task", "show", task, SANDYARD_URL=url)
    restored.process.send_signal(signal.SIGTERM)
    restored.wait_for_exit()
    restored.close()
    assert shown.returncode == 0 and re.search(rb"Ask first", shown.stdout)
    record({"upgrades": 1, "sandboxes": 2, "tasks": 1}, {"sandboxes": 0, "tasks": 0})
