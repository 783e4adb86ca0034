"""Find what is new on a pull request: events for everyone, and messages for the session that created it.

Pure functions: the caller writes the events, the message and what was reported in one transaction, so that everything is reported once,
despite crashes and repeated polling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandyard.kit.text import make_storable
from sandyard.kit.times import rfc3339
from sandyard.platform.db.models.git_details import ReportedNews
from sandyard.platform.db.models.message_parts import FeedbackPart, RemarkFields
from sandyard.platform.domain.forge.markdown import truncate
from sandyard.platform.domain.forge.model import Checks, Pull, PullState, Remark, Review

MAX_TEXT, MAX_EVENT_TEXT, MAX_EVENT_RUNS = 20_000, 1_000, 20
"""Maximum characters of a remark in the session and in an event; runs named in one event."""
MAX_REMEMBERED = 5_000
"""Keys of remarks that are remembered although the forge no longer lists them, which it may do again."""
_REMARK_EVENTS = {
    "review": "pull_request.reviewed",
    "comment": "pull_request.commented",
    "line_comment": "pull_request.commented",
}
_STATE_EVENTS = {PullState.MERGED: "merged", PullState.CLOSED: "closed", PullState.OPEN: "reopened"}


@dataclass(slots=True)
class News:
    """Changes of a pull request since the last report.

    `events`: kind and data of each. `parts`: one message to the session; empty if it need not be woken. `reported`: what was reported
    until now, including this.
    """

    reported: ReportedNews
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    parts: list[FeedbackPart] = field(default_factory=list)


def find_news(reported: ReportedNews, state: str, review: str, pull: Pull) -> News:
    """Compare with what was reported. `state` and `review` are the previous values."""
    news = News({**reported})
    known = list(reported.get("remarks", []))
    seen, new = set(known), []
    for remark in sorted(pull.remarks, key=lambda remark: (remark.at, remark.kind, remark.id)):
        key = f"{remark.kind}:{remark.id}"
        if key not in seen and not _is_forgotten(reported, remark):
            seen.add(key)
            new.append((key, remark))
    _remember(news.reported, known, [key for key, _ in new], pull)
    _add_remarks(news, [remark for _, remark in new if remark.kind in _REMARK_EVENTS])
    _add_verdict(news, review, pull)
    _add_checks(news, [remark for _, remark in new if remark.kind == "check"], pull)
    if state not in (pull.state, PullState.MERGED) and pull.state in _STATE_EVENTS:
        news.events.append((f"pull_request.{_STATE_EVENTS[pull.state]}", {}))
    return news


def _remember(reported: ReportedNews, known: list[str], new: list[str], pull: Pull) -> None:
    """Remember the keys of all listed remarks, however many came since, and of the newest others.

    A remark whose key is forgotten must not be reported again if strangers get the forge to list it again, so the newest forgotten id of
    each kind is kept: the forge's ids increase.
    """
    listed = {f"{remark.kind}:{remark.id}" for remark in pull.remarks}
    unlisted = [key for key in known if key not in listed]
    forgotten = set(unlisted[:-MAX_REMEMBERED])
    reported["remarks"] = [*(key for key in known if key not in forgotten), *new]
    newest = dict(reported.get("forgotten", {}))
    for kind, _, number in (key.partition(":") for key in forgotten):
        if kind in _REMARK_EVENTS and _is_number(number):
            newest[kind] = max(int(number), newest.get(kind, 0))
    if newest:
        reported["forgotten"] = newest


def _is_forgotten(reported: ReportedNews, remark: Remark) -> bool:
    newest = reported.get("forgotten", {}).get(remark.kind)
    return newest is not None and _is_number(remark.id) and int(remark.id) <= newest


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _add_remarks(news: News, new: list[Remark]) -> None:
    for remark in new:
        fields = _to_json(remark)
        news.events.append((_REMARK_EVENTS[remark.kind], _shorten(fields)))
        news.parts.append({"type": "feedback", "source": "github", **fields})


def _add_verdict(news: News, before: str, pull: Pull) -> None:
    """Add an event for an approval without a comment."""
    reviewed = any(kind == "pull_request.reviewed" for kind, _ in news.events)
    if not reviewed and pull.review != before and pull.review in (Review.APPROVED, Review.CHANGES_REQUESTED):
        news.events.append(("pull_request.reviewed", {}))


def _add_checks(news: News, failed: list[Remark], pull: Pull) -> None:
    commit = pull.head_commit
    if failed:
        runs = [_to_json(remark) for remark in failed]
        news.events.append(
            ("pull_request.checks_failed", {"commit": commit, "runs": [_shorten(run) for run in runs[:MAX_EVENT_RUNS]]})
        )
        news.parts += [{"type": "feedback", "source": "github", "commit": commit, **run} for run in runs]
    if pull.checks == Checks.PASSING and news.reported.get("passed") != commit:
        news.reported["passed"] = commit
        news.events.append(("pull_request.checks_passed", {"commit": commit}))
    elif pull.checks == Checks.FAILING:
        news.reported.pop("passed", None)


def _shorten(fields: RemarkFields) -> RemarkFields:
    return {**fields, "text": truncate(fields["text"], MAX_EVENT_TEXT)}


def _to_json(remark: Remark) -> RemarkFields:
    fields: RemarkFields = {
        "kind": remark.kind,
        "remarkId": remark.id,
        "author": make_storable(remark.author),
        "text": truncate(make_storable(remark.text), MAX_TEXT),
        "at": rfc3339(remark.at),
    }
    if remark.state is not None:
        fields["state"] = remark.state
    if remark.path is not None:
        fields["path"] = make_storable(remark.path)
    if remark.line is not None:
        fields["line"] = remark.line
    if remark.url is not None:
        fields["url"] = remark.url
    if remark.may_write is not None:
        fields["mayWrite"] = remark.may_write
    return fields
