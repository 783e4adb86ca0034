"""Lists come in pages, newest first; a page ends with the id at which the next one begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

T = TypeVar("T")
MAX_LIMIT, DEFAULT_LIMIT = 200, 50


@dataclass(frozen=True, slots=True)
class PageRequest:
    """`cursor` is the last id that was seen; None begins with the newest."""

    limit: int = DEFAULT_LIMIT
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """One page. `next_cursor` is None on the last one."""

    items: Sequence[T]
    next_cursor: str | None = None


async def newest_first(
    session: AsyncSession, rows: Select[T], key: InstrumentedAttribute[str], page: PageRequest
) -> Listing[T]:
    """The page of `rows`, sorted by `key`, an ordered id of the entity that is selected."""
    if page.cursor is not None:
        rows = rows.where(key < page.cursor)
    found: list[Any] = list((await session.scalars(rows.order_by(key.desc()).limit(page.limit + 1))).all())
    items = found[: page.limit]
    more = len(found) > page.limit
    return Listing(items, getattr(items[-1], key.key) if more else None)
