"""`sandyard doctor`: everything that is missing is named, with a remedy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli import doctor_platform
from sandyard.cli.doctor_platform import TIMEOUT_SECONDS
from sandyard.cli.findings import Finding
from sandyard.cli.main import cli
from sandyard.engine.contract import Capabilities, Isolation
from sandyard.engine.drivers import capability_check
from sandyard.kit.errors import ForbiddenError
from tests.unit.cli.server import Reply, Request, serving

LIMITS = frozenset(("memory", "cpu", "pids", "disk"))
ALL = frozenset(Isolation)


def examine(monkeypatch: pytest.MonkeyPatch, capabilities: Capabilities | Exception, *options: str) -> tuple[int, str]:
    async def check_capabilities(folder: Path) -> Capabilities:
        assert folder.is_dir()
        if isinstance(capabilities, Exception):
            raise capabilities
        return capabilities

    monkeypatch.setattr(capability_check, "check_capabilities", check_capabilities)
    result = CliRunner().invoke(cli, ["doctor", *options])
    return result.exit_code, result.output


def test_a_fully_capable_machine_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed = examine(monkeypatch, Capabilities(True, ALL, ALL, "cow", LIMITS, True, ALL, ALL))
    assert code == 0
    assert printed.endswith("Sandboxes can run here.\n")
    for name in ("pause", "copies", "memory limit", "disk limit", "internet"):
        assert f"ok       {name}: " in printed


def test_missing_capabilities_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"disk": "no btrfs here: install btrfs-progs", "suspend": "CRIU is too old", "weather": "it rains"}
    code, printed = examine(
        monkeypatch,
        Capabilities(True, frozenset(), frozenset(), "copy", LIMITS - {"disk"}, False, ALL, frozenset(), missing),
    )
    assert code == 0, "sandboxes still run"
    for line in (
        "missing  disk limit: no btrfs here: install btrfs-progs",
        "missing  memory to disk: CRIU is too old",
        "missing  copies: changed files are copied",
        "missing  internet: ",
        "missing  weather: it rains",
    ):
        assert line in printed


def test_a_machine_without_a_driver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed = examine(
        monkeypatch, ForbiddenError("User namespaces are turned off: sysctl user.max_user_namespaces")
    )
    assert code == 1
    assert "missing  driver: User namespaces are turned off" in printed
    assert printed.endswith("Sandboxes cannot run here yet.\n")


def platform_section(printed: str) -> str:
    return printed.partition("Platform\n")[2]


ABLE = Capabilities(True, ALL, ALL, "cow", LIMITS, True, ALL, ALL)


def test_the_platform_is_checked_without_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDYARD_DATA_DIR", str(tmp_path / "data"))
    code, printed = examine(monkeypatch, ABLE)
    assert code == 0
    assert "ok       engine: E2B_API_KEY is not set: `sandyard up` starts its own engine" in platform_section(printed)
    assert f"ok       database: sqlite:///{tmp_path}/data/platform/platform.db will be created" in platform_section(
        printed
    )
    assert not (tmp_path / "data").exists(), "the check creates nothing"


def test_the_given_data_directory_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDYARD_DATA_DIR", str(tmp_path / "other"))
    folder = tmp_path / "data" / "platform"
    folder.mkdir(parents=True)
    (folder / "platform.db").touch()
    for given in (folder.parent, folder):
        _, printed = examine(monkeypatch, ABLE, "--data-dir", str(given))
        assert f"ok       data directory: checks {folder}\n" in platform_section(printed)
        assert f"ok       database: sqlite:///{folder}/platform.db exists" in platform_section(printed)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (200, "responds and accepts the key"),
        (401, "rejected the key"),
        (404, "is not an E2B API"),
        (302, "returned 302"),
    ],
)
def test_a_remote_engine_is_checked(status: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as engine:
        engine.reply = lambda request: Reply(status, b"[]")  # type: ignore[method-assign]
        monkeypatch.setenv("E2B_API_URL", engine.url)
        monkeypatch.setenv("E2B_API_KEY", "e2b_secret")
        code, printed = examine(monkeypatch, ABLE)
    assert code == 0
    assert words in platform_section(printed)
    assert "e2b_secret" not in printed


def test_checks_run_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine responds only after the database was checked, and the driver opens only after both were."""
    checked = {"database": threading.Event(), "engine": threading.Event()}

    def answer(request: Request) -> Reply:
        checked["engine"].set()
        return Reply(200 if checked["database"].wait(TIMEOUT_SECONDS) else 500, b"[]")

    async def check_capabilities(folder: Path) -> Capabilities:
        for item in checked.values():
            assert await asyncio.to_thread(item.wait, TIMEOUT_SECONDS)
        return ABLE

    monkeypatch.setattr(capability_check, "check_capabilities", check_capabilities)
    monkeypatch.setattr(
        doctor_platform, "check_database", lambda settings: checked["database"].set() or Finding("d", True, "")
    )
    with serving() as engine:
        engine.reply = answer  # type: ignore[method-assign]
        monkeypatch.setenv("E2B_API_URL", engine.url)
        monkeypatch.setenv("E2B_API_KEY", "e2b_secret")
        result = CliRunner().invoke(cli, ["doctor"])
    assert "responds and accepts the key" in platform_section(result.output), result.output


def test_doctor_imports_no_large_libraries() -> None:
    """Imports take most of the time, and these checks need neither the whole engine nor SQLAlchemy."""
    program = (
        "import sys; from sandyard.cli import doctor, doctor_platform; import sandyard.engine.drivers.capability_check\n"
        "findings = list(doctor_platform.check_platform())\n"
        "print([name for name in ('sqlalchemy', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_wrong_settings_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_URL", "http://127.0.0.1:1")
    assert "missing  E2B_API_KEY: not set" in examine(monkeypatch, ABLE)[1]
    monkeypatch.setenv("E2B_API_KEY", "e2b_secret")
    assert (
        "missing  engine: could not connect to http://127.0.0.1:1: Connection refused" in examine(monkeypatch, ABLE)[1]
    )
    monkeypatch.setenv("E2B_API_URL", "http://[")
    assert "missing  engine: " in examine(monkeypatch, ABLE)[1]
    monkeypatch.delenv("E2B_API_URL")
    monkeypatch.delenv("E2B_API_KEY")
    for url, words in {
        "mysql://x/y": "mysql is not supported",
        "no url": "is not a valid URL",
        "postgresql://me:pass@127.0.0.1:1/x": "postgresql://me:***@127.0.0.1:1/x: ",
        "sqlite:////dev/null/platform.db": "cannot be created in /dev/null",
    }.items():
        monkeypatch.setenv("SANDYARD_DATABASE_URL", url)
        _, printed = examine(monkeypatch, ABLE)
        assert words in platform_section(printed)
        assert "Traceback" not in printed
    monkeypatch.setenv("SANDYARD_PORT", "many")
    code, printed = examine(monkeypatch, ABLE)
    assert code == 1
    assert "missing  settings: The setting 'port' is not valid" in printed
    assert "The platform cannot start yet." in printed
