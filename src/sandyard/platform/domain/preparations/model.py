"""Types of preparations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandyard.kit.errors import SandyardError
from sandyard.platform.db.models import Preparation


@dataclass(frozen=True, slots=True)
class Progress:
    """The current step of a preparation, and the last line of its output, if any."""

    step: str
    output: str | None


class PreparationFailedError(SandyardError):
    """The project's setup failed."""

    code, status = "preparation_failed", 409

    def __init__(self, message: str | None = None, extra: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self._extra = dict(extra or {})

    @property
    def extra(self) -> Mapping[str, object]:
        return self._extra


def make_error(row: Preparation) -> PreparationFailedError:
    """Return the error of a failed preparation."""
    failure = row.detail.get("failure", {})
    return PreparationFailedError(row.error, {**failure, "preparationId": row.id})


def get_preparation_event_fields(row: Preparation) -> dict[str, str | None]:
    """Return the ids that every event about this preparation contains."""
    return {
        "owner_id": row.owner_id,
        "project_id": row.project_id,
        "sandbox_id": row.sandbox_id,
        "preparationId": row.id,
    }
