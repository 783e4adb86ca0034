"""Run the tests of the JavaScript SDK in js/ with node's test runner, one test here for each file there. `make test` runs only those in
`SMOKE`, because the others repeat what the tests of the Python SDK check in the engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.engine import Engine

from .compatibility.recording import javascript_environment

FOLDER = Path(__file__).parent / "js"
SMOKE = {"commands.test.mjs", "files.test.mjs", "lifecycle.test.mjs"}
FILES = [
    name if name in SMOKE else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(path.name for path in FOLDER.glob("*.test.mjs"))
]


@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", FILES)
def test_javascript(engine: Engine, name: str, min_isolation: str) -> None:
    node = shutil.which("node", path=f"{FOLDER.parents[2] / '.venv-node/bin'}{os.pathsep}{os.environ['PATH']}")
    assert node, "node is missing: run `make setup-test`"
    assert (FOLDER / "node_modules/e2b").exists(), "the SDK is missing: run `make setup-test`"
    isolation = {"SANDYARD_TEST_ISOLATION": min_isolation}
    result = subprocess.run(
        [node, "--test", "--test-reporter=spec", name],
        cwd=FOLDER,
        env={**os.environ, **engine.environment, **isolation, **javascript_environment(name)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
