"""Pagination: lists come in pages, newest first; a page ends with the id at which the next one starts.

A page has at most the requested number of rows and at most PAGE_BYTES of unbounded columns, because the response is in
memory until the client has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import JSON, ColumnElement, LargeBinary, Select, Text, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from sandyard.platform.db.base import Base
from sandyard.platform.db.types import JsonBytes

T = TypeVar("T")
MAX_LIMIT, DEFAULT_LIMIT = 200, 50
PAGE_BYTES = 4 << 20
"""Maximum size of texts, JSON and bytes in a page's rows. A single row may be larger."""
_MEASURE_BATCH = 16


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A requested page. `cursor` is the last id of the previous page; None starts with the newest."""

    limit: int = DEFAULT_LIMIT
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """One page. `next_cursor` is None on the last page."""

    items: Sequence[T]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The first rows of a query. `last` is the key of the last row, None if there are none. `more`: others follow."""

    items: Sequence[T]
    last: Any
    more: bool


async def list_newest_first(
    session: AsyncSession, rows: Select[T], key: InstrumentedAttribute[str], page: PageRequest
) -> Listing[T]:
    """Return a page of `rows`, sorted by `key`, which is an ordered id of the selected entity."""
    if page.cursor is not None:
        rows = rows.where(key < page.cursor)
    found = await read_rows(session, rows.order_by(key.desc()), key, page.limit)
    return Listing(found.items, found.last if found.more else None)


async def read_rows(session: AsyncSession, rows: Select[T], key: InstrumentedAttribute[Any], limit: int) -> Rows[T]:
    """Return the first of the sorted `rows`: at most `limit`, and at most PAGE_BYTES unless the first row alone is
    larger.

    `key` must be unique. The database measures rows before they are read, so that no more than a page is ever in
    memory.
    """
    size = _make_size_expression(key.parent.class_)
    if size is None:
        found: list[Any] = list(await session.scalars(rows.limit(limit + 1)))
        items = found[:limit]
        return Rows(items, getattr(items[-1], key.key) if items else None, len(found) > limit)
    keys: list[Any] = list(await session.scalars(rows.with_only_columns(key).limit(limit + 1)))
    if not keys:
        return Rows([], None, False)
    count = await _count_fitting(session, key, size, keys[:limit])
    items = list(await session.scalars(rows.where(key.in_(keys[:count]))))  # some may have been deleted since
    return Rows(items, keys[count - 1], len(keys) > count)


async def _count_fitting(
    session: AsyncSession, key: InstrumentedAttribute[Any], size: ColumnElement[int], keys: Sequence[Any]
) -> int:
    """Return how many of these rows fit into a page, at least one.

    The database reads a row to measure it, so only a few more rows are measured than fit.
    """
    count, left, step = 0, PAGE_BYTES, _MEASURE_BATCH
    while count < len(keys):
        some = keys[count : count + step]
        measured = await session.execute(select(key, size).where(key.in_(some)))
        sizes: dict[Any, int] = {row[0]: row[1] for row in measured}
        for item_id in some:
            left -= sizes.get(item_id, 0)
            if left < 0:
                return max(count, 1)
            count += 1
        step *= 4
    return count


def _make_size_expression(entity: type[Base]) -> ColumnElement[int] | None:
    """Return the size of a row's unbounded columns as an expression. None if there are no such columns."""
    columns = [
        func.length(column) if isinstance(column.type, LargeBinary) else JsonBytes(column)
        for column in entity.__table__.columns
        if isinstance(column.type, Text | JSON | LargeBinary)
    ]
    if not columns:
        return None
    total: ColumnElement[int] = sum((func.coalesce(column, 0) for column in columns[1:]), func.coalesce(columns[0], 0))
    return total
