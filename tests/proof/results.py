"""Results of trials: kept one file each, so that trials can be repeated alone."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Result:
    """The last run of a trial. `tried` and `lost` are empty if its tests have passed without counting anything."""

    trial: str
    passed: bool
    full: bool
    commit: str
    date: str
    machine: str
    seconds: int
    tests: int
    skipped: tuple[str, ...] = ()  # why
    tried: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)


def save(folder: Path, result: Result) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.trial}.json").write_text(json.dumps(asdict(result), indent=2) + "\n")


def load(folder: Path, trial: str) -> Result | None:
    path = folder / f"{trial}.json"
    if not path.exists():
        return None
    fields = json.loads(path.read_text())
    return Result(**{**fields, "skipped": tuple(fields["skipped"])})


def read_records(path: Path) -> tuple[dict[str, int], dict[str, int], dict[str, str]]:
    """Return what the tests of a trial have recorded, added up: tried, lost and measured."""
    tried: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    measured: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        tried.update(entry["tried"])
        lost.update(entry["lost"])
        measured.update(entry["measured"])
    return dict(tried), dict(lost), measured


def read_report(path: Path) -> tuple[int, tuple[str, ...]]:
    """Return the number of tests that ran, and why others were skipped, from a JUnit report."""
    if not path.exists():
        return 0, ()
    cases = ET.parse(path).getroot().findall(".//testcase")
    reasons = [skip.get("message", "") for case in cases for skip in case.findall("skipped")]
    return len(cases) - len(reasons), tuple(sorted(set(reasons)))
