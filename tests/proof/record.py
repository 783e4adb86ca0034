"""Record how many things a test tried and lost, for `make proof`. Tests call `record` at their end; without `make proof` it does nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

VARIABLE = "SANDYARD_PROOF"
"""The file that records are appended to, one JSON object per line."""


def record(tried: dict[str, int], lost: dict[str, int] | None = None, **measured: str) -> None:
    """Add the numbers of a test. `tried` and `lost` are added up over all tests of a trial; `measured` is shown as it is."""
    if path := os.environ.get(VARIABLE):
        with Path(path).open("a") as file:
            file.write(json.dumps({"tried": tried, "lost": lost or {}, "measured": measured}) + "\n")
