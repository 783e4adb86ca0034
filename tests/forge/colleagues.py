"""Actions of other users on the forge, through the same API: review, comment, check, merge, close."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from tests.forge.facade import GitHub

EVERYTHING = ("*",)


class Colleague:
    """A user with their own token. Every method asserts success and returns the answer of GitHub."""

    def __init__(self, github: GitHub, login: str) -> None:
        self.login = login
        self.token = github.tokens.make(login)
        headers = {"Authorization": f"Bearer {self.token.text}"}
        self._client = httpx.Client(base_url=github.api_url, headers=headers, timeout=30, trust_env=False)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._client.request(method, path, json=body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def pull(self, slug: str, number: int) -> dict[str, Any]:
        return dict(self.call("GET", f"/repos/{slug}/pulls/{number}"))

    def pulls(self, slug: str, state: str = "open") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for page in itertools.count(1):
            some = self.call("GET", f"/repos/{slug}/pulls?state={state}&per_page=100&page={page}")
            found += some
            if len(some) < 100:
                return found
        raise AssertionError("the pages must end")

    def open(self, slug: str, head: str, *, title: str, base: str = "main", body: str = "") -> dict[str, Any]:
        wanted = {"title": title, "head": head, "base": base, "body": body}
        return dict(self.call("POST", f"/repos/{slug}/pulls", wanted))

    def approve(self, slug: str, number: int, body: str = "Looks right.") -> Any:
        return self._review(slug, number, "APPROVE", body)

    def request_changes(self, slug: str, number: int, body: str, *, path: str | None = None, remark: str = "") -> Any:
        """Request changes. With `path`, also comment on its first changed line."""
        comments = [{"path": path, "position": 1, "body": remark or body}] if path else []
        return self._review(slug, number, "REQUEST_CHANGES", body, comments)

    def _review(
        self, slug: str, number: int, event: str, body: str, comments: list[dict[str, Any]] | None = None
    ) -> Any:
        wanted = {"event": event, "body": body, "comments": comments or []}
        return self.call("POST", f"/repos/{slug}/pulls/{number}/reviews", wanted)

    def comment(self, slug: str, number: int, body: str) -> Any:
        return self.call("POST", f"/repos/{slug}/issues/{number}/comments", {"body": body})

    def remark(self, slug: str, number: int, path: str, body: str, *, line: int = 1) -> Any:
        """Comment on one line of the diff."""
        commit = self.pull(slug, number)["head"]["sha"]
        wanted = {"body": body, "path": path, "line": line, "position": line, "side": "RIGHT", "commit_id": commit}
        return self.call("POST", f"/repos/{slug}/pulls/{number}/comments", wanted)

    def check(
        self, slug: str, commit: str, conclusion: str | None, *, name: str = "ci", title: str = "", summary: str = ""
    ) -> Any:
        """Create a check run for the commit. Without a conclusion it is still running."""
        wanted: dict[str, Any] = {"name": name, "head_sha": commit, "output": {"title": title, "summary": summary}}
        run = self.call("POST", f"/repos/{slug}/check-runs", {**wanted, "status": "in_progress"})
        if conclusion is None:
            return run
        completed = {"status": "completed", "conclusion": conclusion, "output": wanted["output"]}
        return self.call("PATCH", f"/repos/{slug}/check-runs/{run['id']}", completed)

    def status(self, slug: str, commit: str, state: str, *, context: str = "ci/older", description: str = "") -> Any:
        wanted = {"state": state, "context": context, "description": description}
        return self.call("POST", f"/repos/{slug}/statuses/{commit}", wanted)

    def merge(self, slug: str, number: int, method: str = "squash") -> Any:
        return self.call("PUT", f"/repos/{slug}/pulls/{number}/merge", {"merge_method": method})

    def close(self, slug: str, number: int) -> Any:
        return self.call("PATCH", f"/repos/{slug}/pulls/{number}", {"state": "closed"})

    def reopen(self, slug: str, number: int) -> Any:
        return self.call("PATCH", f"/repos/{slug}/pulls/{number}", {"state": "open"})

    def hook(self, slug: str, url: str, secret: str | None, events: tuple[str, ...] = EVERYTHING) -> int:
        """Deliver events to this URL from now on. Returns the id of the webhook."""
        config = {"url": url, "content_type": "json", **({"secret": secret} if secret else {})}
        wanted = {"name": "web", "active": True, "events": list(events), "config": config}
        return int(self.call("POST", f"/repos/{slug}/hooks", wanted)["id"])

    def deliveries(self, slug: str, hook: int) -> list[dict[str, Any]]:
        return list(self.call("GET", f"/repos/{slug}/hooks/{hook}/deliveries"))
