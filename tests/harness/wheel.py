"""The wheel, built as in `make wheel`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.harness.processes import ROOT

STATIC = "sandyard/platform/static/"


def build_wheel(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel of a source tree in a folder and return its path."""
    assert source != ROOT or (ROOT / "src" / STATIC / "index.html").exists(), (
        "the web application is not built: run `make web`"
    )
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(source)], check=True
    )
    (built,) = folder.glob("sandyard-*.whl")
    return built
