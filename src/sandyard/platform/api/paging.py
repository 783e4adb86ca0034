"""`?limit=&cursor=` and the answer's `{items, nextCursor}`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query
from pydantic import Field

from sandyard.platform.api.answers import large_answer
from sandyard.platform.api.schema import Model
from sandyard.platform.domain.paging import DEFAULT_LIMIT, MAX_LIMIT, Listing, PageRequest

__all__ = ["Page", "PageRequest", "Paging"]

T = TypeVar("T")
R = TypeVar("R")
CURSOR = r"^[A-Za-z0-9_-]{1,100}$"


class Page(Model, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(
        default=None, description="Send it as `cursor` for the next page; null on the last one."
    )

    @classmethod
    def of(cls, listing: Listing[R], view: Callable[[R], T]) -> Page[T]:
        return cls(items=[view(row) for row in listing.items], next_cursor=listing.next_cursor)


async def _page(
    _slot: Annotated[None, large_answer()],
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many at most.")] = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None, Query(pattern=CURSOR, description="`nextCursor` of the page before; leave it out to begin.")
    ] = None,
) -> PageRequest:
    return PageRequest(limit, cursor)


Paging = Annotated[PageRequest, Depends(_page)]
