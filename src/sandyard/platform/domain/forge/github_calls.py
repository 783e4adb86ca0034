"""Requests of one repository: its paths, and pagination of its lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from sandyard.platform.domain.forge.connection import Connection
from sandyard.platform.domain.forge.errors import ForgeUnreachableError
from sandyard.platform.domain.forge.github_reading import Json, table, tables

_PAGE, _PAGES = 100, 10


class Calls:
    """Requests of one repository. Raises only ForgeError and its subclasses. `max_wait_s`: how long to wait for rate limits."""

    def __init__(self, connection: Connection, slug: str, max_wait_s: float) -> None:
        self.connection = connection
        self.owner, _, self.name = slug.partition("/")
        self.web_url = f"{connection.web_url}/{quote(slug)}"
        """The URL of the repository's page."""
        self._root = f"/repos/{quote(self.owner, safe='')}/{quote(self.name, safe='')}"
        self._max_wait_s = max_wait_s

    async def get(self, path: str) -> Json:
        answer = await self.connection.request("GET", self._root + path, max_wait_s=self._max_wait_s)
        return self._expected(answer.json)

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, repeat: bool | None = None
    ) -> Any:
        path = self._root + path
        return (await self.connection.request(method, path, body=body, max_wait_s=self._max_wait_s, repeat=repeat)).json

    async def change(self, method: str, path: str, body: Mapping[str, Any], *, repeat: bool | None = None) -> Json:
        """Send a change whose response is the changed object."""
        return self._expected(await self.send(method, path, body, repeat=repeat))

    async def every(self, path: str, key: str | None = None, **params: str) -> list[Json]:
        """Return the items of a list (in the member `key` of its responses), oldest first like GitHub.

        For a very long list: the first page and the last ones, because recent items are at the end.
        """
        found: list[Json] = []
        page: int | None = 1
        read = 0
        while page is not None and read < _PAGES:
            query = {**params, "per_page": str(_PAGE), "page": str(page)}
            answer = await self.connection.request("GET", self._root + path, params=query, max_wait_s=self._max_wait_s)
            found += tables(answer.json if key is None else table(answer.json).get(key))
            read += 1
            page = answer.next
            if read == 1 and answer.last is not None and answer.last > _PAGES:
                page = answer.last - _PAGES + 2
        return found

    async def graphql(self, query: str, variables: Mapping[str, Any]) -> Json:
        return table((await self.connection.graphql(query, variables, max_wait_s=self._max_wait_s)).json)

    @staticmethod
    def _expected(said: Any) -> Json:
        if not isinstance(said, dict):
            raise ForgeUnreachableError("The forge did not respond like GitHub. Check that forge.apiUrl is correct.")
        return said
