"""The log of each sandbox: what happened to it and why it ended. Stored in the database, so that it outlives the engine
and the sandbox."""

from __future__ import annotations

import json

from sandyard.engine.sandboxes.model import LogEntry, LogLevel, LogQuery
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock

_LEVELS = tuple(LogLevel)
MAX_MESSAGE = 4096  # characters
MAX_ENDED = 20_000  # ended sandboxes whose logs are kept
_TRIM_EVERY = 64  # entries of a sandbox
_DELETE_BATCH = 100


class SandboxLogs:
    """Keeps the newest `kept` entries of a sandbox, for `retention_s` after it has ended. Synchronous; each call takes
    microseconds."""

    def __init__(self, database: Database, clock: Clock, *, kept: int, retention_s: float) -> None:
        self._database = database
        self._clock = clock
        self._kept = kept
        self._retention_s = retention_s
        self._since_trim: dict[str, int] = {}

    def append(self, sandbox_id: str, level: LogLevel, message: str, **fields: str) -> None:
        """Add an entry in the open transaction, so that it exists exactly if the change it describes does."""
        self._database.execute(
            "INSERT INTO logs (sandbox_id, at, level, message, fields) VALUES (?, ?, ?, ?, ?)",
            (sandbox_id, self._clock.now(), _LEVELS.index(level), message[:MAX_MESSAGE], json.dumps(fields)),
        )
        written = self._since_trim.get(sandbox_id, 0) + 1
        if written >= _TRIM_EVERY:
            self._trim(sandbox_id)
            written = 0
        self._since_trim[sandbox_id] = written

    def query(self, sandbox_id: str, query: LogQuery) -> list[LogEntry]:
        """Return the matching entries in the requested order. `query.limit` applies after all filters."""
        conditions: list[str] = ["sandbox_id = ?"]
        values: list[object] = [sandbox_id]
        if query.start is not None:
            conditions.append("at <= ?" if query.newest_first else "at >= ?")
            values.append(query.start)
        if query.level is not None:
            conditions.append("level >= ?")
            values.append(_LEVELS.index(query.level))
        if query.search:
            conditions.append("instr(message, ?) > 0")
            values.append(query.search)
        order = "DESC" if query.newest_first else "ASC"
        rows = self._database.query(
            f"SELECT at, level, message, fields FROM logs WHERE {' AND '.join(conditions)} ORDER BY id {order} LIMIT ?",  # noqa: S608
            (*values, query.limit),
        )
        return [LogEntry(at, _LEVELS[level], message, json.loads(fields)) for at, level, message, fields in rows]

    def has_entries(self, sandbox_id: str) -> bool:
        return bool(self._database.query("SELECT 1 FROM logs WHERE sandbox_id = ? LIMIT 1", (sandbox_id,)))

    def mark_ended(self, sandbox_id: str) -> None:
        """Mark the sandbox as ended; its log is kept for a while. Runs in the open transaction."""
        self._database.execute(
            "INSERT INTO ended VALUES (?, ?) ON CONFLICT (sandbox_id) DO UPDATE SET at = excluded.at",
            (sandbox_id, self._clock.now()),
        )
        self._since_trim.pop(sandbox_id, None)

    def delete_expired(self) -> None:
        """Remove some logs of sandboxes that ended too long ago, or before too many others. Call it every few seconds;
        each call takes about a millisecond, regardless of the total."""
        expired = self._database.query(
            "SELECT sandbox_id FROM ended WHERE at < ? ORDER BY at LIMIT ?",
            (self._clock.now() - self._retention_s, _DELETE_BATCH),
        )
        (ended,) = self._database.query("SELECT count(*) FROM ended")[0]
        if not expired and ended > MAX_ENDED:
            expired = self._database.query("SELECT sandbox_id FROM ended ORDER BY at LIMIT ?", (_DELETE_BATCH,))
        if expired:
            with self._database.transaction():
                for row in expired:
                    self._database.execute("DELETE FROM logs WHERE sandbox_id = ?", row)
                    self._database.execute("DELETE FROM ended WHERE sandbox_id = ?", row)

    def _trim(self, sandbox_id: str) -> None:
        """Delete all but the newest entries of a sandbox."""
        self._database.execute(
            "DELETE FROM logs WHERE sandbox_id = ?1 AND id <= "
            "(SELECT id FROM logs WHERE sandbox_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            (sandbox_id, self._kept),
        )
