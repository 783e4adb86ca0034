"""The columns of the platform's database that hold encrypted values, and the context that each value is bound to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import InstrumentedAttribute

from sandyard.platform.db.models import Credential, McpServer, ModelProvider, Sandbox, StoredSecret


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column whose values a vault has encrypted."""

    model: type[Any]
    column: str
    get_location: Callable[[Any], tuple[str, ...]]
    """Returns the location of a row's value, as it was given to `Vault.seal`."""

    @property
    def value(self) -> InstrumentedAttribute[Any]:
        attribute: InstrumentedAttribute[Any] = getattr(self.model, self.column)
        return attribute


SEALED_COLUMNS = (
    SealedColumn(StoredSecret, "value", lambda row: (row.owner_id, row.project_key, row.name)),
    SealedColumn(Credential, "value", lambda row: ("credential", row.project_id, row.kind)),
    SealedColumn(ModelProvider, "key", lambda row: ("model provider", row.id)),
    SealedColumn(McpServer, "headers", lambda row: ("mcp server", row.id)),
    SealedColumn(Sandbox, "envs", lambda row: ("sandbox envs", row.id)),
)
"""All of them: a test compares the list with the models."""
