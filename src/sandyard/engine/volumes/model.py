"""Types for volumes."""

from __future__ import annotations

from dataclasses import dataclass

from sandyard.kit.secret import Secret


@dataclass(frozen=True, slots=True)
class Volume:
    id: str
    name: str
    token: Secret  # grants access to its content only
    size_mb: int
    created_at: float
