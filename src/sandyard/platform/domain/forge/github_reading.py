"""What GitHub's answers mean. Nothing here trusts a field to be there, or to be what the documents say it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sandyard.platform.domain.forge.model import (
    CheckRun,
    Checks,
    Permissions,
    Pull,
    PullState,
    Remark,
    Review,
)

Json = dict[str, Any]

OURS = "<!-- sandyard -->"
"""Ends what the platform itself says on a pull request, so that it is not taken for somebody's remark."""

_TEXT = 20_000
_PASSED = ("success", "neutral", "skipped", "stale")
_EPOCH = datetime.fromtimestamp(0, UTC)


def table(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any, limit: int = _TEXT) -> str:
    return value[:limit] if isinstance(value, str) else ""


def instant(value: Any) -> datetime | None:
    """Of `2026-01-31T10:00:00Z`, with or without parts of a second."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def login(of: Any) -> str:
    return text(table(of).get("login"), 200) or "ghost"  # as GitHub calls those who are gone


def permissions(repository: Json, granted: Mapping[str, str] | None) -> Permissions:
    """`granted` is what an App's token says of itself; it knows better than the repository's answer, which speaks of people."""
    allowed = table(repository.get("permissions"))
    return Permissions(
        push=granted.get("contents") == "write" if granted else allowed.get("push") is True,
        pull_requests=granted.get("pull_requests") == "write" if granted else True,
        archived=repository.get("archived") is True,
        default_branch=text(repository.get("default_branch"), 250) or None,
    )


def pull(said: Json) -> Pull:
    """Without its reviews, checks and remarks, which are other answers."""
    merged_at, head = instant(said.get("merged_at")), table(said.get("head"))
    merged = merged_at is not None or said.get("merged") is True
    closed = merged or said.get("state") == "closed"
    mergeable = said.get("mergeable")
    return Pull(
        number=int(said["number"]),
        url=text(said.get("html_url"), 2000),
        title=text(said.get("title"), 300),
        state=PullState.MERGED if merged else PullState.CLOSED if closed else PullState.OPEN,
        draft=said.get("draft") is True,
        head=text(head.get("ref"), 250),
        base=text(table(said.get("base")).get("ref"), 250),
        head_commit=text(head.get("sha"), 64) or None,
        mergeable=mergeable if isinstance(mergeable, bool) else None,
        labels=tuple(name for label in tables(said.get("labels")) if (name := text(label.get("name"), 100))),
        merged_at=merged_at,
        closed_at=instant(said.get("closed_at")),
        updated_at=instant(said.get("updated_at")),
        body=text(said.get("body"), 1 << 20),
    )


def verdict(reviews: Sequence[Json]) -> Review:
    """The last decisive word of each reviewer counts: one who wants changes outweighs all who approve. Oldest first."""
    last: dict[str, str] = {}
    commented = False
    for review in reviews:
        state = text(review.get("state"), 40).upper()
        if state in ("APPROVED", "CHANGES_REQUESTED"):
            last[login(review.get("user"))] = state
        commented = commented or state == "COMMENTED"
    if "CHANGES_REQUESTED" in last.values():
        return Review.CHANGES_REQUESTED
    if last:
        return Review.APPROVED
    return Review.COMMENTED if commented else Review.NONE


# checks -------------------------------------------------------------------------------------------------------------------


def check_runs(said: Iterable[Json]) -> list[tuple[CheckRun, Remark | None]]:
    """Each with what is to be told of it, if it failed."""
    found = []
    for run in said:
        output = table(run.get("output"))
        summary = "\n\n".join(part for name in ("title", "summary", "text") if (part := text(output.get(name)).strip()))
        found.append(_check(run, f"{run.get('id')}", summary, instant(run.get("completed_at"))))
    return found


def workflow_runs(said: Iterable[Json]) -> list[tuple[CheckRun, Remark | None]]:
    """Of GitHub Actions. A run that is tried again keeps its id."""
    found = []
    for run in said:
        summary = text(run.get("display_title"), 300)
        found.append(
            _check(run, f"run-{run.get('id')}-{run.get('run_attempt', 1)}", summary, instant(run.get("updated_at")))
        )
    return found


def statuses(said: Iterable[Json]) -> list[tuple[CheckRun, Remark | None]]:
    """Commit statuses, which are older than check runs and have fewer words."""
    found = []
    for status in said:
        state = text(status.get("state"), 40)
        over = state in ("success", "failure", "error")
        as_run = {
            "name": status.get("context"),
            "status": "completed" if over else "in_progress",
            "conclusion": state if over else None,
            "html_url": status.get("target_url"),
        }
        summary, at = text(status.get("description")), instant(status.get("updated_at"))
        found.append(_check(as_run, f"status-{status.get('id')}", summary, at))
    return found


def _check(said: Json, key: str, summary: str, at: datetime | None) -> tuple[CheckRun, Remark | None]:
    run = CheckRun(
        name=text(said.get("name"), 300) or "check",
        status=text(said.get("status"), 40) or "queued",
        conclusion=text(said.get("conclusion"), 40) or None,
        url=text(said.get("html_url") or said.get("details_url"), 2000) or None,
        summary=summary[:_TEXT] or None,
    )
    if not failed(run):
        return run, None
    words = f"{run.name}: {run.conclusion}" + (f"\n\n{summary}" if summary else "")
    return run, Remark("check", key, run.name, words[:_TEXT], at or _EPOCH, state=run.conclusion, url=run.url)


def failed(run: CheckRun) -> bool:
    return run.status == "completed" and run.conclusion not in _PASSED


def outcome(runs: Sequence[CheckRun]) -> Checks:
    """One failure is enough, also while others still run."""
    if any(failed(run) for run in runs):
        return Checks.FAILING
    if any(run.status != "completed" for run in runs):
        return Checks.PENDING
    return Checks.PASSING if runs else Checks.NONE


# remarks ------------------------------------------------------------------------------------------------------------------


def review_remarks(reviews: Iterable[Json]) -> list[Remark]:
    found = []
    for review in reviews:
        state, words = text(review.get("state"), 40).lower(), text(review.get("body"))
        if state in ("pending", "dismissed") or not (words.strip() or state == "changes_requested"):
            continue
        found.append(_remark("review", review, "submitted_at", state=state))
    return [remark for remark in found if OURS not in remark.text]


def comment_remarks(comments: Iterable[Json]) -> list[Remark]:
    found = [_remark("comment", comment, "created_at") for comment in comments]
    return [remark for remark in found if remark.text.strip() and OURS not in remark.text]


def line_remarks(comments: Iterable[Json]) -> list[Remark]:
    """On lines of the diff. One whose line is gone by now says where it was."""
    found = []
    for comment in comments:
        line = comment.get("line") or comment.get("original_line")
        path = text(comment.get("path"), 1000) or None
        at = line if isinstance(line, int) else None
        found.append(_remark("line_comment", comment, "created_at", path=path, line=at))
    return [remark for remark in found if remark.text.strip() and OURS not in remark.text]


def _remark(
    kind: str, said: Json, at: str, *, state: str | None = None, path: str | None = None, line: int | None = None
) -> Remark:
    return Remark(
        kind,
        f"{said.get('id')}",
        login(said.get("user")),
        text(said.get("body")),
        instant(said.get(at)) or _EPOCH,
        state=state,
        path=path,
        line=line,
        url=text(said.get("html_url"), 2000) or None,
    )
