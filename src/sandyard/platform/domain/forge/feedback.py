"""Find what is new on a pull request: events for everyone, and messages for the session that created it.

Pure functions: the caller writes the events, the message and what was reported in one transaction, so that everything is reported once,
despite crashes and repeated polling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandyard.kit.text import storable
from sandyard.kit.times import rfc3339
from sandyard.platform.domain.forge.markdown import truncate
from sandyard.platform.domain.forge.model import Checks, Pull, PullState, Remark, Review

TEXT, GLIMPSE, RUNS = 20_000, 1_000, 20
"""Maximum characters of a remark in the session and in an event; runs named in one event."""
REMEMBERED = 5_000
_SAID = {
    "review": "pull_request.reviewed",
    "comment": "pull_request.commented",
    "line_comment": "pull_request.commented",
}
_BECAME = {PullState.MERGED: "merged", PullState.CLOSED: "closed", PullState.OPEN: "reopened"}


@dataclass(slots=True)
class News:
    """`events`: kind and data of each. `parts`: one message to the session; empty if it need not be woken. `told`: what was reported."""

    told: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)


def find_news(told: Mapping[str, Any], state: str, review: str, pull: Pull) -> News:
    """Compare with what was reported. `state` and `review` are the previous values."""
    found = News(dict(told))
    known: list[str] = list(told.get("remarks", []))
    seen, new = set(known), []
    for remark in sorted(pull.remarks, key=lambda remark: (remark.at, remark.kind, remark.id)):
        key = f"{remark.kind}:{remark.id}"
        if key not in seen:
            seen.add(key)
            new.append((key, remark))
    found.told["remarks"] = [*known, *(key for key, _ in new)][-REMEMBERED:]
    _add_remarks(found, [remark for _, remark in new if remark.kind in _SAID])
    _add_verdict(found, review, pull)
    _add_checks(found, [remark for _, remark in new if remark.kind == "check"], pull)
    if state not in (pull.state, PullState.MERGED) and pull.state in _BECAME:
        found.events.append((f"pull_request.{_BECAME[pull.state]}", {}))
    return found


def _add_remarks(found: News, new: list[Remark]) -> None:
    for remark in new:
        said = _to_json(remark)
        found.events.append((_SAID[remark.kind], _shorten(said)))
        found.parts.append({"type": "feedback", "source": "github", **said})


def _add_verdict(found: News, before: str, pull: Pull) -> None:
    """Add an event for an approval without a comment."""
    told = any(kind == "pull_request.reviewed" for kind, _ in found.events)
    if not told and pull.review != before and pull.review in (Review.APPROVED, Review.CHANGES_REQUESTED):
        found.events.append(("pull_request.reviewed", {}))


def _add_checks(found: News, failed: list[Remark], pull: Pull) -> None:
    commit = pull.head_commit
    if failed:
        runs = [_to_json(remark) for remark in failed]
        found.events.append(
            ("pull_request.checks_failed", {"commit": commit, "runs": [_shorten(run) for run in runs[:RUNS]]})
        )
        found.parts += [{"type": "feedback", "source": "github", "commit": commit, **run} for run in runs]
    if pull.checks == Checks.PASSING and found.told.get("passed") != commit:
        found.told["passed"] = commit
        found.events.append(("pull_request.checks_passed", {"commit": commit}))
    elif pull.checks == Checks.FAILING:
        found.told.pop("passed", None)


def _shorten(said: dict[str, Any]) -> dict[str, Any]:
    return {**said, "text": truncate(said["text"], GLIMPSE)}


def _to_json(remark: Remark) -> dict[str, Any]:
    said: dict[str, Any] = {
        "kind": remark.kind,
        "remarkId": remark.id,
        "author": storable(remark.author),
        "text": truncate(storable(remark.text), TEXT),
        "at": rfc3339(remark.at),
        "state": remark.state,
        "path": remark.path and storable(remark.path),
        "line": remark.line,
        "url": remark.url,
        "mayWrite": remark.may_write,
    }
    return {name: value for name, value in said.items() if value is not None}
