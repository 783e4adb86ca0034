"""`sandyard doctor`: every thing that is missing is named, with what helps."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli import doctor_platform
from sandyard.cli.doctor_platform import PATIENCE_SECONDS
from sandyard.cli.findings import Finding
from sandyard.cli.main import cli
from sandyard.engine.contract import Capabilities
from sandyard.engine.drivers import capability_check
from sandyard.kit.errors import ForbiddenError
from tests.unit.cli.server import Reply, Request, serving

LIMITS = frozenset(("memory", "cpu", "pids", "disk"))


def examine(monkeypatch: pytest.MonkeyPatch, able: Capabilities | Exception) -> tuple[int, str]:
    async def open_briefly(folder: Path) -> Capabilities:
        assert folder.is_dir()
        if isinstance(able, Exception):
            raise able
        return able

    monkeypatch.setattr(capability_check, "open_briefly", open_briefly)
    result = CliRunner().invoke(cli, ["doctor"])
    return result.exit_code, result.output


def test_a_machine_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = examine(monkeypatch, Capabilities(True, True, "cow", LIMITS, True))
    assert code == 0
    assert said.endswith("Sandboxes can run here.\n")
    for name in ("pause", "copies", "memory limit", "disk limit", "internet"):
        assert f"ok       {name}: " in said


def test_what_is_missing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"disk": "no btrfs here: install btrfs-progs", "suspend": "CRIU is too old", "weather": "it rains"}
    code, said = examine(monkeypatch, Capabilities(True, False, "copy", LIMITS - {"disk"}, False, missing))
    assert code == 0, "sandboxes run all the same"
    for line in (
        "missing  disk limit: no btrfs here: install btrfs-progs",
        "missing  memory to disk: CRIU is too old",
        "missing  copies: changed files are copied",
        "missing  internet: ",
        "missing  weather: it rains",
    ):
        assert line in said


def test_a_machine_without_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = examine(monkeypatch, ForbiddenError("User namespaces are turned off: sysctl user.max_user_namespaces"))
    assert code == 1
    assert "missing  driver: User namespaces are turned off" in said
    assert said.endswith("Sandboxes cannot run here yet.\n")


def section(said: str) -> str:
    return said.partition("Platform\n")[2]


ABLE = Capabilities(True, True, "cow", LIMITS, True)


def test_the_platform_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDYARD_DATA_DIR", str(tmp_path / "data"))
    code, said = examine(monkeypatch, ABLE)
    assert code == 0
    assert "ok       engine: E2B_API_KEY is not set: `sandyard up` starts its own engine" in section(said)
    assert f"ok       database: sqlite:///{tmp_path}/data/platform.db will be created" in section(said)
    assert not (tmp_path / "data").exists(), "looking makes nothing"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (200, "responds and accepts the key"),
        (401, "rejected the key"),
        (404, "is not an E2B API"),
        (302, "returned 302"),
    ],
)
def test_an_engine_elsewhere(status: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as engine:
        engine.reply = lambda request: Reply(status, b"[]")  # type: ignore[method-assign]
        monkeypatch.setenv("E2B_API_URL", engine.url)
        monkeypatch.setenv("E2B_API_KEY", "e2b_secret")
        code, said = examine(monkeypatch, ABLE)
    assert code == 0
    assert words in section(said)
    assert "e2b_secret" not in said


def test_nobody_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine answers only when the database was asked, and the driver is open only when both were."""
    asked = {"database": threading.Event(), "engine": threading.Event()}

    def answer(request: Request) -> Reply:
        asked["engine"].set()
        return Reply(200 if asked["database"].wait(PATIENCE_SECONDS) else 500, b"[]")

    async def open_briefly(folder: Path) -> Capabilities:
        for one in asked.values():
            assert await asyncio.to_thread(one.wait, PATIENCE_SECONDS)
        return ABLE

    monkeypatch.setattr(capability_check, "open_briefly", open_briefly)
    monkeypatch.setattr(
        doctor_platform, "_database", lambda settings: asked["database"].set() or Finding("d", True, "")
    )
    with serving() as engine:
        engine.reply = answer  # type: ignore[method-assign]
        monkeypatch.setenv("E2B_API_URL", engine.url)
        monkeypatch.setenv("E2B_API_KEY", "e2b_secret")
        result = CliRunner().invoke(cli, ["doctor"])
    assert "responds and accepts the key" in section(result.output), result.output


def test_little_is_loaded_to_look() -> None:
    """What takes long is importing: the whole engine and SQLAlchemy, for questions that need neither."""
    program = (
        "import sys; from sandyard.cli import doctor, doctor_platform; import sandyard.engine.drivers.capability_check\n"
        "findings = list(doctor_platform.check_platform())\n"
        "print([name for name in ('sqlalchemy', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"


def test_what_is_configured_wrongly_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
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
        _, said = examine(monkeypatch, ABLE)
        assert words in section(said)
        assert "Traceback" not in said
    monkeypatch.setenv("SANDYARD_PORT", "many")
    code, said = examine(monkeypatch, ABLE)
    assert code == 1
    assert "missing  settings: The setting 'port' is not valid" in said
    assert "The platform cannot start yet." in said
