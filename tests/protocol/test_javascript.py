"""The JavaScript SDK, driven by node's own test runner in js/. One test here for each file there; of those, the ones in `SMOKE` run in
`make test`, for the others repeat what the tests of the Python SDK prove of the engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .compatibility.recording import javascript_environment
from .engine import Engine

FOLDER = Path(__file__).parent / "js"
SMOKE = {"commands.test.mjs", "files.test.mjs", "lifecycle.test.mjs"}
FILES = [
    name if name in SMOKE else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(path.name for path in FOLDER.glob("*.test.mjs"))
]


@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", FILES)
def test_javascript(engine: Engine, name: str) -> None:
    node = shutil.which("node", path=f"{FOLDER.parents[2] / '.venv-node/bin'}{os.pathsep}{os.environ['PATH']}")
    assert node, "node is missing: `make setup-test` brings it"
    assert (FOLDER / "node_modules/e2b").exists(), "the SDK is missing: `make setup-test` brings it"
    ran = subprocess.run(
        [node, "--test", "--test-reporter=spec", name],
        cwd=FOLDER,
        env={**os.environ, **engine.environment, **javascript_environment(name)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
