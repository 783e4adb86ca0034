"""Test a release of the Python SDK before 2.51, which still calls the v1 routes, in its own environment."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

from tests.harness.engine import Engine
from tests.harness.processes import ROOT

SCENARIOS = Path(__file__).parent / "older_sdk" / "scenarios.py"
PYTHON = Path(os.environ.get("SANDYARD_OLD_SDK_PYTHON") or ROOT / ".venv-e2b-2.50/bin/python")
SMOKE = {"sdk_is_older_than_v2_create", "create_and_kill", "commands", "files"}
SCENARIO_NAMES = [
    node.name if node.name in SMOKE else pytest.param(node.name, marks=pytest.mark.slow)
    for node in ast.parse(SCENARIOS.read_text()).body
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
]


@pytest.mark.parametrize("name", SCENARIO_NAMES)
def test_older_sdk(engine: Engine, name: str) -> None:
    assert PYTHON.exists(), f"{PYTHON} is missing: run `make setup-test`"
    result = subprocess.run(
        [str(PYTHON), str(SCENARIOS), name],
        env={**os.environ, **engine.environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
