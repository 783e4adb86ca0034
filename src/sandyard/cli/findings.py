"""Results of checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. If a `vital` check fails, the checked component does not work at all."""

    name: str
    ok: bool
    detail: str
    vital: bool = False
