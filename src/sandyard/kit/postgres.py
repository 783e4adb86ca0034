"""What the platform and the engine share to own a PostgreSQL database: an advisory lock that one process holds."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]

DETECT_VANISHED = """SET tcp_keepalives_idle = 3; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = 6000"""
"""Settings of the server's end of a connection, so that it detects a vanished machine after six seconds."""
_HELD = """SELECT EXISTS (SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
    WHERE datname = current_database() AND locktype = 'advisory' AND classid = 0 AND objid = $1 AND objsubid = 1 AND granted"""
HELD_BY_ANYBODY, HELD_BY_ME = f"{_HELD})", f"{_HELD} AND pid = pg_backend_pid())"
"""Queries, with the number of the lock as their parameter."""
BROKEN_CONNECTION = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised by a connection that broke at a bad moment
)


def identify(folder: Path) -> str:
    """Return the id of the process with this data directory.

    Only one process uses the directory at a time, and the process after a crash has the same id.
    """
    there = folder.stat()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    parts = (boot, socket.gethostname(), str(folder), str(there.st_dev), str(there.st_ino))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
