"""Format the steps of an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from sandyard.cli.live.screen import format_duration
from sandyard.cli.output import escape

MARKS = {
    "running": "…",
    "succeeded": "✓",
    "completed": "✓",
    "failed": "✗",
    "fixed": "✗",
    "skipped": "-",
    "not_applicable": "-",
}
STEP_COLOURS = {"succeeded": "green", "completed": "green", "failed": "red", "fixed": "yellow", "running": "cyan"}
STEP_LABELS = {"provision": "sandbox"}
"""Labels of steps whose name in the API differs from the one in the web."""
SKIP_REASONS = {
    ("verify", "skipped"): "skipped: the project has no verify command",
    ("pull_request", "not_applicable"): "not applicable: the remote does not support pull requests",
}
PROGRESS_TEXTS = {
    "setup": "preparing the repository and the agent",
    "provision": "starting a sandbox",
    "checkout": "checking out a branch",
    "agent": "the agent is working",
    "verify": "verifying",
    "commit": "committing",
    "push": "pushing",
    "pull_request": "opening the pull request",
}


def get_step_name(step: Any) -> str:
    return get_step_label(step["name"])


def get_step_label(name: object) -> str:
    """Return a step's name as in the web, in lower case."""
    return STEP_LABELS.get(str(name)) or escape(str(name).replace("_", " "))


def get_step_state(step: Any) -> str:
    """Return the outcome: running, succeeded, failed, fixed, skipped or not_applicable."""
    return str(step.get("outcome") or step["status"])  # older platforms only send the status


def format_step(step: Any, now: datetime | None = None, *, error: bool = True) -> str:
    """Format a step: `✓ verify  12 s  (started 2 times)`, followed by its error if `error` is set."""
    state = get_step_state(step)
    text = f"{MARKS.get(state, '·')} {get_step_name(step)}"
    if state in ("skipped", "not_applicable"):
        return f"{text}  {SKIP_REASONS.get((step['name'], state), state.replace('_', ' '))}"
    if (seconds := get_seconds(step, now)) is not None and seconds >= 0.05:
        text += f"  {format_duration(seconds)}"
    if int(step.get("tries") or 1) > 1:
        text += f"  (started {step['tries']} times)"
    if state in ("failed", "fixed") and (step.get("detail") or {}).get("exitCode") is not None:
        text += f"  exit code {step['detail']['exitCode']}"
    if state == "fixed":
        text += "  (fixed afterwards)"
    if error and step.get("error"):
        text += f"  {escape(str(step['error']))[:500]}"
    return text


def get_seconds(step: Any, now: datetime | None = None) -> float | None:
    try:
        started = datetime.fromisoformat(step["startedAt"])
        ended = datetime.fromisoformat(step["finishedAt"]) if step.get("finishedAt") else now or datetime.now(UTC)
    except (KeyError, TypeError, ValueError):
        return None
    return max(0.0, (ended - started).total_seconds())


class StepLog:
    """Yields each step of an attempt once when it starts and once when it ends."""

    def __init__(self, past: Iterable[Any] = ()) -> None:
        self._shown: dict[tuple[int, int], tuple[int, str]] = {}
        for step in past:
            self._shown[_get_key(step)] = _get_progress(step)

    def list_new(self, steps: Iterable[Any]) -> Iterator[Any]:
        for step in steps:
            state = _get_progress(step)
            if self._shown.get(_get_key(step)) != state:
                self._shown[_get_key(step)] = state
                yield step


def _get_key(step: Any) -> tuple[int, int]:
    return int(step.get("round") or 1), int(step.get("number") or 0)


def _get_progress(step: Any) -> tuple[int, str]:
    return int(step.get("tries") or 1), str(step["status"])
