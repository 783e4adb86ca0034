"""Pagination: `?limit=&cursor=` in requests, `{items, nextCursor}` in responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query
from pydantic import Field

from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.schema import Model
from sandyard.platform.domain.paging import DEFAULT_LIMIT, MAX_LIMIT, Listing, PageRequest

__all__ = ["Page", "PageRequest", "Paging"]

T = TypeVar("T")
R = TypeVar("R")
CURSOR = r"^[A-Za-z0-9_-]{1,100}$"


class Page(Model, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(
        default=None, description="Send it as `cursor` to get the next page. Null on the last page."
    )

    @classmethod
    def from_listing(cls, listing: Listing[R], view: Callable[[R], T]) -> Page[T]:
        return cls(items=[view(row) for row in listing.items], next_cursor=listing.next_cursor)


async def _page(
    _slot: Annotated[None, limit_large_responses()],
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of items.")] = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None,
        Query(pattern=CURSOR, description="`nextCursor` of the previous page. Leave it out for the first page."),
    ] = None,
) -> PageRequest:
    return PageRequest(limit, cursor)


Paging = Annotated[PageRequest, Depends(_page)]
