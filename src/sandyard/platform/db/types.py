"""Column types and a function that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

BigInt = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite assigns row numbers only if the type is INTEGER, which has 64 bits there anyway."""

Json = JSON().with_variant(JSONB(), "postgresql")


class UtcTime(TypeDecorator[datetime]):
    """An instant, stored and returned in UTC. Times without a time zone are rejected."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("the time has no time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        assert isinstance(value, datetime)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class JsonBytes(FunctionElement[int]):
    """The approximate size in bytes of a text or JSON column written as JSON. NULL for NULL.

    SQLite stores JSON in ASCII, so there the size includes the escapes.
    """

    type = Integer()
    inherit_cache = True


@compiles(JsonBytes, "postgresql")
def _json_bytes_postgresql(element: JsonBytes, compiler: SQLCompiler, **options: Any) -> str:
    return f"octet_length(CAST(to_json({compiler.process(element.clauses, **options)}) AS TEXT))"


@compiles(JsonBytes, "sqlite")
def _json_bytes_sqlite(element: JsonBytes, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    (clause,) = element.clauses
    return f"length(CAST({column if isinstance(clause.type, JSON) else f'json_quote({column})'} AS BLOB))"
