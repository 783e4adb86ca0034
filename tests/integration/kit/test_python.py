"""No Python process that Sandyard starts imports a module from the current directory."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandyard
from sandyard.cli.up import command
from sandyard.cli.up.background import Background
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.engine.images import child as images
from sandyard.engine.settings import EngineSettings
from sandyard.engine.templates import node
from sandyard.kit.errors import SandyardError
from sandyard.kit.python import SAFE_FOLDER, make_python_command, make_python_environment
from sandyard.kit.settings import make_paths_absolute
from sandyard.platform.settings import PlatformSettings

SOURCE = Path(sandyard.__file__).parent
GUEST_CODE = (
    "engine/guest",
    "engine/interpreter",
    "platform/domain/agents/demo",
    "platform/domain/projects/sample-repository",
    "platform/domain/sandboxes/e2b/guest",
)
"""These run in sandboxes, with the Python of the sandbox."""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory whose modules leave a trace when they are run."""
    folder = tmp_path / "repository"
    trace = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + '\\n')\n"
    for name in "tarfile json asyncio click pip sitecustomize usercustomize".split():
        folder.joinpath(f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        folder.joinpath(f"{name}.py").write_text(trace)
    for name in ("sandyard/__init__.py", "sandyard/__main__.py", "sandyard/engine/__init__.py"):
        folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        folder.joinpath(name).write_text(trace)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f":.{os.pathsep}{tmp_path / 'absolute'}")
    yield tmp_path
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_the_command_and_its_environment_ignore_the_current_directory(hostile: Path) -> None:
    environment = make_python_environment()
    assert environment["PYTHONPATH"] == str(hostile / "absolute")
    assert "PYTHONPATH" not in make_python_environment({"PYTHONPATH": ":."})
    for further in ({}, {"cwd": SAFE_FOLDER}):
        done = subprocess.run(
            make_python_command("sandyard", "--version"),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            **further,
        )
        assert sandyard.__version__ in done.stdout


async def test_image_processes_ignore_the_current_directory(hostile: Path) -> None:
    with pytest.raises(SandyardError):
        await images.run_process("unpack", {}, "The image")


def test_the_installation_of_node_ignores_the_current_directory(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "LOCK", hostile / "none.txt")
    with pytest.raises(SandyardError, match=r"none\.txt"):
        node.fetch_node(hostile / "work")


def test_up_in_the_background_ignores_the_current_directory(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `run --repo .` starts it. Its own child processes are started in the same way."""
    monkeypatch.setenv("SANDYARD_DATA_DIR", "../data")
    monkeypatch.setenv("SANDYARD_IMAGES_MAX_MB", "0")
    up = Background(0, keep=False)
    with pytest.raises(SandyardError, match="images_max_mb"):
        up.start(lambda words: None, new_token=False)
    assert (hostile / "data" / "up.log").exists(), "relative to the directory of the caller"
    assert not Path(SAFE_FOLDER, "data").exists()


def test_the_children_of_up_ignore_the_current_directory(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDYARD_TEMPLATES_DIR", "templates")
    state = DataDirectory(Path("data"))
    state.acquire_lock()
    try:
        for child in command.make_children(command.Plan("127.0.0.1", 1, True, 2, (), None, None), state):
            assert child.command[:4] == [sys.executable, "-P", "-m", "sandyard"]
            assert child.environment["PYTHONSAFEPATH"] == "1"
            assert child.environment["PYTHONPATH"] == str(hostile / "absolute")
            assert child.environment["SANDYARD_TEMPLATES_DIR"] == str(hostile / "repository" / "templates")
    finally:
        os.close(state.lock_fd)


def test_paths_are_made_absolute_before_the_directory_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"SANDYARD_IMAGES_DIRS": "one, /two", "SANDYARD_TLS_CERT": "c.pem", "SSL_CERT_FILE": "ca", "OTHER": "x"}
    assert make_paths_absolute(given, EngineSettings, PlatformSettings) == {
        "SANDYARD_IMAGES_DIRS": f"{tmp_path}/one,/two",
        "SANDYARD_TLS_CERT": f"{tmp_path}/c.pem",
        "SSL_CERT_FILE": f"{tmp_path}/ca",
        "OTHER": "x",
    }


def test_every_python_process_is_started_through_the_kit() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name == "kit/python.py" or name.startswith(GUEST_CODE):
            continue
        text = path.read_text()
        if "executable" not in text and "multiprocessing" not in text:
            continue  # parsing all of the source takes seconds
        for found in ast.walk(ast.parse(text)):
            named = isinstance(found, ast.Attribute) and found.attr in {"executable", "_base_executable"}
            if named or (isinstance(found, ast.ImportFrom) and found.module == "multiprocessing"):
                wrong.append(f"{name}:{found.lineno}")
    assert not wrong, f"use sandyard.kit.python instead: {wrong}"
