"""The hosts on which layers and volumes were created, recorded by the engine. Hosts cannot change this record."""

from __future__ import annotations

from collections.abc import Callable

from sandyard.engine.store.database import Database
from sandyard.kit.errors import ConflictError


class StoredOrigins:
    """Implements `Origins` in the engine's open database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find_host(self, name: str) -> str | None:
        return self._find("host", name)

    def find_content(self, layer: str) -> str | None:
        return self._find("content", layer)

    def _find(self, column: str, name: str) -> str | None:
        rows = self._database.query(f"SELECT {column} FROM origins WHERE name = ?", (name,))  # noqa: S608 - a constant
        return None if not rows or rows[0][0] is None else str(rows[0][0])

    def record(self, name: str, host_id: str) -> None:
        self._database.execute("INSERT INTO origins (name, host) VALUES (?, ?) ON CONFLICT DO NOTHING", (name, host_id))
        if self.find_host(name) != host_id:
            raise ConflictError(f"The host {host_id} claims {name}, which belongs to another host.")

    def record_content(self, layer: str, diff_id: str) -> None:
        self._database.execute(
            "INSERT INTO origins (name, content) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET content = excluded.content WHERE origins.content IS NULL",
            (layer, diff_id),
        )

    def forget(self, name: str) -> None:
        self._database.execute("DELETE FROM origins WHERE name = ?", (name,))

    def remove_unused_layers(self, is_used: Callable[[str], bool]) -> None:
        """Forget the layers that nothing uses. Call when the engine starts."""
        for (name,) in self._database.query("SELECT name FROM origins WHERE name NOT LIKE 'volume:%'"):
            if not is_used(str(name)):
                self.forget(str(name))
