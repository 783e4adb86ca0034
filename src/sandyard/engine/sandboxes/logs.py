"""The log of each sandbox: what happened to it and why it ended. Kept in the database, so that it outlives engine and
sandbox."""

from __future__ import annotations

import json

from sandyard.engine.sandboxes.model import LogEntry, LogLevel, LogQuery
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock

_LEVELS = tuple(LogLevel)
MAX_MESSAGE = 4096
_TRIM_EVERY = 64


class SandboxLogs:
    """Bounded: the newest `kept` entries of a sandbox, and for `retention_s` after it has ended. Synchronous,
    microseconds each."""

    def __init__(self, database: Database, clock: Clock, *, kept: int, retention_s: float) -> None:
        self._database = database
        self._clock = clock
        self._kept = kept
        self._retention_s = retention_s
        self._since_trim: dict[str, int] = {}

    def append(self, sandbox_id: str, level: LogLevel, message: str, **fields: str) -> None:
        """Joins the transaction that is open, so that an entry is there exactly when the change it speaks of is."""
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
        conditions, parameters = ["sandbox_id = ?"], [sandbox_id]
        values: list[object] = list(parameters)
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

    def known(self, sandbox_id: str) -> bool:
        return bool(self._database.query("SELECT 1 FROM logs WHERE sandbox_id = ? LIMIT 1", (sandbox_id,)))

    def forget(self) -> None:
        """Remove the logs of sandboxes that ended longer ago than they are kept. For a quiet moment: it may take
        milliseconds."""
        self._database.execute(
            "DELETE FROM logs WHERE sandbox_id IN (SELECT sandbox_id FROM logs GROUP BY sandbox_id HAVING max(at) < ?) "
            "AND sandbox_id NOT IN (SELECT id FROM sandboxes)",
            (self._clock.now() - self._retention_s,),
        )
        living = {row[0] for row in self._database.query("SELECT id FROM sandboxes")}
        self._since_trim = {key: count for key, count in self._since_trim.items() if key in living}

    def _trim(self, sandbox_id: str) -> None:
        self._database.execute(
            "DELETE FROM logs WHERE sandbox_id = ?1 AND id <= "
            "(SELECT id FROM logs WHERE sandbox_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            (sandbox_id, self._kept),
        )
