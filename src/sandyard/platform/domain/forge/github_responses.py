"""Parse GitHub's responses. No field is trusted to exist or to have the documented type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from sandyard.platform.domain.forge.errors import ForgeUnreachableError
from sandyard.platform.domain.forge.model import (
    CheckRun,
    Checks,
    Permissions,
    Pull,
    PullState,
    Remark,
    Review,
)

JsonObject = dict[str, Any]

_MAX_TEXT = 20_000
_MAX_LABELS = 100
_MAX_NUMBER = (1 << 31) - 1
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_WEB_URL = re.compile(r"https?://[!-~]+", re.IGNORECASE)
_PASSED = ("success", "neutral", "skipped", "stale")
_EPOCH = datetime.fromtimestamp(0, UTC)


def as_object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_text(value: Any, limit: int = _MAX_TEXT) -> str:
    """Return the text without characters that a database rejects: NUL and lone surrogates."""
    return _UNSTORABLE.sub("", value[:limit]) if isinstance(value, str) else ""


def as_number(value: Any) -> int | None:
    """Return a positive number within limits, or None."""
    return value if type(value) is int and 0 < value <= _MAX_NUMBER else None


def get_number(pull: JsonObject) -> int:
    """Return the number of a pull request. Raises ForgeUnreachableError for another response."""
    number = as_number(pull.get("number"))
    if number is None:
        raise ForgeUnreachableError(
            "The forge's response is not a pull request. Check that the project's forge.apiUrl is correct."
        )
    return number


def as_url(value: Any) -> str | None:
    """Return the URL of a web page, or None. Pages of checks may be on any host."""
    found = as_text(value, 2000)
    return found if _WEB_URL.fullmatch(found) else None


def _choose_page_url(value: Any, web_url: str, number: int) -> str:
    """Return the page of a pull request: the forge's URL if it is on the forge's host, otherwise the expected one."""
    url = as_url(value)
    try:
        on_forge = url is not None and urlsplit(url).netloc.lower() == urlsplit(web_url).netloc.lower()
    except ValueError:
        on_forge = False
    return url if url is not None and on_forge else f"{web_url}/pull/{number}"


def _parse_id(value: Any) -> str:
    """Return the forge's id of an object."""
    return as_text(str(value) if isinstance(value, int) else value, 60)


def parse_time(value: Any) -> datetime | None:
    """Parse `2026-01-31T10:00:00Z`, with or without fractions of a second."""
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def get_login(user: Any) -> str:
    return as_text(as_object(user).get("login"), 200) or "ghost"  # GitHub's name for deleted accounts


def parse_permissions(repository: JsonObject, granted: Mapping[str, str] | None) -> Permissions:
    """Return the permissions. `granted` are those of an App's token, which take precedence over the repository's response about people."""
    allowed = as_object(repository.get("permissions"))
    return Permissions(
        push=granted.get("contents") == "write" if granted else allowed.get("push") is True,
        pull_requests=granted.get("pull_requests") == "write" if granted else True,
        archived=repository.get("archived") is True,
        default_branch=as_text(repository.get("default_branch"), 250) or None,
    )


def parse_pull(fields: JsonObject, web_url: str) -> Pull:
    """Parse a pull request. Its reviews, checks and remarks are not included, because GitHub returns them in other responses.

    `web_url`: the repository's page. Raises ForgeUnreachableError for another response.
    """
    number, commit = get_number(fields), as_text(as_object(fields.get("head")).get("sha"), 64)
    merged_at, head = parse_time(fields.get("merged_at")), as_object(fields.get("head"))
    merged = merged_at is not None or fields.get("merged") is True
    closed = merged or fields.get("state") == "closed"
    mergeable = fields.get("mergeable")
    return Pull(
        number=number,
        url=_choose_page_url(fields.get("html_url"), web_url, number),
        title=as_text(fields.get("title"), 300),
        state=PullState.MERGED if merged else PullState.CLOSED if closed else PullState.OPEN,
        draft=fields.get("draft") is True,
        head=as_text(head.get("ref"), 250),
        base=as_text(as_object(fields.get("base")).get("ref"), 250),
        head_commit=commit if _COMMIT.fullmatch(commit) else None,
        mergeable=mergeable if isinstance(mergeable, bool) else None,
        labels=tuple(
            name
            for label in as_objects(fields.get("labels"))[:_MAX_LABELS]
            if (name := as_text(label.get("name"), 100))
        ),
        merged_at=merged_at,
        closed_at=parse_time(fields.get("closed_at")),
        updated_at=parse_time(fields.get("updated_at")),
        body=as_text(fields.get("body"), 1 << 20),
    )


def summarize_reviews(reviews: Sequence[JsonObject]) -> Review:
    """Return the overall review. `reviews` are oldest first.

    The last verdict of each reviewer counts, and requested changes outweigh approvals.
    """
    last: dict[str, str] = {}
    commented = False
    for review in reviews:
        state = as_text(review.get("state"), 40).upper()
        if state in ("APPROVED", "CHANGES_REQUESTED"):
            last[get_login(review.get("user"))] = state
        commented = commented or state == "COMMENTED"
    if "CHANGES_REQUESTED" in last.values():
        return Review.CHANGES_REQUESTED
    if last:
        return Review.APPROVED
    return Review.COMMENTED if commented else Review.NONE


# checks -------------------------------------------------------------------------------------------------------------------


def parse_check_runs(runs: Iterable[JsonObject]) -> list[tuple[CheckRun, Remark | None]]:
    """Return check runs, each with a remark if it failed."""
    found = []
    for run in runs:
        output = as_object(run.get("output"))
        summary = "\n\n".join(
            part for name in ("title", "summary", "text") if (part := as_text(output.get(name)).strip())
        )
        found.append(_parse_check(run, _parse_id(run.get("id")), summary, parse_time(run.get("completed_at"))))
    return found


def parse_workflow_runs(runs: Iterable[JsonObject], slug: str) -> list[tuple[CheckRun, Remark | None]]:
    """Return runs of GitHub Actions. A rerun keeps its id.

    Runs of forks are left out: anyone can open a pull request with the same commit, and its title would be the run's.
    """
    found = []
    for run in runs:
        if as_text(as_object(run.get("head_repository")).get("full_name"), 300).lower() != slug.lower():
            continue
        summary = as_text(run.get("display_title"), 300)
        found.append(
            _parse_check(
                run,
                f"run-{_parse_id(run.get('id'))}-{as_number(run.get('run_attempt')) or 1}",
                summary,
                parse_time(run.get("updated_at")),
            )
        )
    return found


def parse_statuses(statuses: Iterable[JsonObject]) -> list[tuple[CheckRun, Remark | None]]:
    """Return commit statuses, which are older and less detailed than check runs."""
    found = []
    for status in statuses:
        state = as_text(status.get("state"), 40)
        finished = state in ("success", "failure", "error")
        as_run = {
            "name": status.get("context"),
            "status": "completed" if finished else "in_progress",
            "conclusion": state if finished else None,
            "html_url": status.get("target_url"),
        }
        summary, at = as_text(status.get("description")), parse_time(status.get("updated_at"))
        found.append(_parse_check(as_run, f"status-{_parse_id(status.get('id'))}", summary, at))
    return found


def _parse_check(fields: JsonObject, key: str, summary: str, at: datetime | None) -> tuple[CheckRun, Remark | None]:
    run = CheckRun(
        name=as_text(fields.get("name"), 300) or "check",
        status=as_text(fields.get("status"), 40) or "queued",
        conclusion=as_text(fields.get("conclusion"), 40) or None,
        url=as_url(fields.get("html_url")) or as_url(fields.get("details_url")),
        summary=summary[:_MAX_TEXT] or None,
    )
    if not is_failed(run):
        return run, None
    text = f"{run.name}: {run.conclusion}" + (f"\n\n{summary}" if summary else "")
    return run, Remark("check", key, run.name, text[:_MAX_TEXT], at or _EPOCH, state=run.conclusion, url=run.url)


def is_failed(run: CheckRun) -> bool:
    return run.status == "completed" and run.conclusion not in _PASSED


def summarize_checks(runs: Sequence[CheckRun]) -> Checks:
    """Return the overall state. One failure is enough, even while others are running."""
    if any(is_failed(run) for run in runs):
        return Checks.FAILING
    if any(run.status != "completed" for run in runs):
        return Checks.PENDING
    return Checks.PASSING if runs else Checks.NONE


# remarks ------------------------------------------------------------------------------------------------------------------


def parse_review_remarks(reviews: Iterable[JsonObject]) -> list[Remark]:
    found = []
    for review in reviews:
        state, body = as_text(review.get("state"), 40).lower(), as_text(review.get("body"))
        if state in ("pending", "dismissed") or not (body.strip() or state == "changes_requested"):
            continue
        found.append(_parse_remark("review", review, "submitted_at", state=state))
    return found


def parse_comment_remarks(comments: Iterable[JsonObject]) -> list[Remark]:
    found = [_parse_remark("comment", comment, "created_at") for comment in comments]
    return [remark for remark in found if remark.text.strip()]


def parse_line_remarks(comments: Iterable[JsonObject]) -> list[Remark]:
    """Return comments on lines of the diff. One whose line no longer exists has its original line."""
    found = []
    for comment in comments:
        line = comment.get("line") or comment.get("original_line")
        path = as_text(comment.get("path"), 1000) or None
        found.append(_parse_remark("line_comment", comment, "created_at", path=path, line=as_number(line)))
    return [remark for remark in found if remark.text.strip()]


def _parse_remark(
    kind: str,
    fields: JsonObject,
    time_field: str,
    *,
    state: str | None = None,
    path: str | None = None,
    line: int | None = None,
) -> Remark:
    return Remark(
        kind,
        _parse_id(fields.get("id")),
        get_login(fields.get("user")),
        as_text(fields.get("body")),
        parse_time(fields.get(time_field)) or _EPOCH,
        state=state,
        path=path,
        line=line,
        url=as_url(fields.get("html_url")),
        association=as_text(fields.get("author_association"), 40).upper() or None,
    )
