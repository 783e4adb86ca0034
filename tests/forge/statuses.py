"""Commit statuses, which emulate does not support: created, listed, and combined according to the documentation of GitHub."""

from __future__ import annotations

import re
from typing import Any

from tests.forge.calls import Answer, Request, refusal

BAD = ("error", "failure")


class Statuses:
    def __init__(self) -> None:
        self._statuses: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def correct(self, request: Request) -> Answer | None:
        repository = request.repository
        assert repository is not None, "called for repositories only"
        if request.method == "POST" and (found := re.fullmatch(r"statuses/([0-9a-f]{40})", request.rest)):
            rows = self._statuses.setdefault((repository.slug, found[1]), [])
            body = request.body
            row = {"id": len(rows) + 1, "context": "default", "description": None, "target_url": None, **body}
            rows.insert(0, row)
            return Answer(201, row)
        if request.method == "GET" and (found := re.fullmatch(r"commits/(.+)/(status|statuses)", request.rest)):
            commit = repository.resolve(found[1])
            if commit is None:
                return refusal(422, f"No commit found for SHA: {found[1]}")
            rows = self._statuses.get((repository.slug, commit), [])
            return Answer(200, rows if found[2] == "statuses" else self._combined(commit, rows))
        return None

    def _combined(self, commit: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        latest: dict[str, dict[str, Any]] = {}
        for row in rows:
            latest.setdefault(row["context"], row)
        states = {row["state"] for row in latest.values()}
        state = "failure" if states & set(BAD) else "pending" if not states or "pending" in states else "success"
        return {"state": state, "sha": commit, "total_count": len(latest), "statuses": list(latest.values())}
