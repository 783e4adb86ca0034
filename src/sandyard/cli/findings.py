"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A check result. Without a `vital` one, the checked component does not work at all."""

    name: str
    ok: bool
    detail: str
    vital: bool = False
