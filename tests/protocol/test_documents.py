"""Run the programs in README.md and docs/e2b.md as they are printed, with the unmodified SDKs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.documents.guides import ROOT, list_programs
from tests.harness.engine import Engine

GUIDE = ROOT / "docs/e2b.md"
JAVASCRIPT = Path(__file__).parent / "js"
PROGRAMS = [*list_programs(ROOT / "README.md", "python"), *list_programs(GUIDE, "python")]
BASICS = [text for text in PROGRAMS if "sandbox.pause()" in text]
(TEMPLATES,) = [text for text in PROGRAMS if "Template.build" in text]
"""Needs the template of the code interpreter. The remaining program needs the desktop: tests/protocol/clients has its SDK."""


def run(engine: Engine, command: list[str], folder: Path) -> str:
    """Run a program and return its output."""
    environment = {**os.environ, **engine.environment}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("program", BASICS)
def test_sandboxes(engine: Engine, tmp_path: Path, program: str) -> None:
    output = run(engine, [sys.executable, "-c", program], tmp_path)
    assert "still here" in output or "hello from" in output


@pytest.fixture
def no_traces(api: httpx.Client) -> Iterator[None]:
    """Delete what the program leaves for later use."""
    yield
    api.delete("/templates/my-server").raise_for_status()
    for kind, key in (("volumes", "volumeID"), ("secrets", "secretID")):
        for item in api.get(f"/{kind}").raise_for_status().json():
            if item["name"] in ("shared", "api-token"):
                api.delete(f"/{kind}/{item[key]}").raise_for_status()


@pytest.mark.usefixtures("no_traces")
def test_templates_volumes_and_secrets(engine: Engine, tmp_path: Path) -> None:
    output = run(engine, [sys.executable, "-c", TEMPLATES], tmp_path)
    assert "2432902008176640000" in output
    assert "<h1>ready</h1>" in output


def test_javascript(engine: Engine) -> None:
    node = shutil.which("node", path=f"{ROOT / '.venv-node/bin'}{os.pathsep}{os.environ['PATH']}")
    assert node, "node is missing: run `make setup-test`"
    (program,) = list_programs(GUIDE, "js")
    assert "hello from node" in run(engine, [node, "--input-type=module", "--eval", program], JAVASCRIPT)
