"""What a look at the machine has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`vital`: without it, what it belongs to does not work at all."""

    name: str
    ok: bool
    detail: str
    vital: bool = False
