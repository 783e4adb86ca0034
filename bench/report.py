"""A row of the table: what was measured, its floor in the same run, and the target it is held against."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


def percentile(samples: Sequence[float], q: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


median = statistics.median


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    unit: str
    floor: float | None
    target: float | None
    more_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.more_is_better else self.value <= self.target


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(rows: Sequence[Row]) -> str:
    head = ("what", "value", "floor", "ratio", "target", "")
    body = [
        (
            row.what,
            f"{number(row.value)} {row.unit}",
            number(row.floor),
            number(row.ratio),
            ("≥ " if row.more_is_better else "≤ ") + number(row.target) if row.target is not None else "-",
            {True: "ok", False: "MISSED", None: ""}[row.reached] + (f"  {row.note}" if row.note else ""),
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i in (0, 5) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (head, *body)
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def write(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"machine": machine(), "rows": [{**asdict(row), "ratio": row.ratio, "reached": row.reached} for row in rows]}
    path.write_text(json.dumps(data, indent=2) + "\n")
