"""Follow a task until its attempts stop: show messages, steps, questions and permission requests.

The state is fetched from the server whenever its feed reports an event: see `feed.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from sandyard.cli.asks import Answering
from sandyard.cli.connection import segment
from sandyard.cli.errors import ApiError
from sandyard.cli.output import echo, printable
from sandyard.cli.tasks.feed import News
from sandyard.cli.tasks.finding import Agents
from sandyard.cli.tasks.screen import Screen
from sandyard.cli.tasks.staying import INTERRUPTED, stay
from sandyard.cli.tasks.steps import DOING, STEP_COLOURS, StepLog, described, name_of, state_of
from sandyard.cli.tasks.telling import telling

if TYPE_CHECKING:
    from sandyard.cli.client import Client

WORKING = {"queued", "running"}
WELL = {"in_review", "ready", "merged"}


@dataclass(frozen=True, slots=True)
class Known:
    """What was already shown of an attempt, so that it is not repeated."""

    steps: tuple[Any, ...] = ()
    message: str = ""


def known(client: Client, task: Any) -> dict[str, Known]:
    """Return the current state of a task, by attempt."""
    found = {}
    for attempt in task.get("attempts") or []:
        try:
            newest = client.get(f"/sessions/{segment(attempt['sessionId'])}/messages", limit=1)["items"]
        except ApiError as error:
            if error.http_status != 404:
                raise
            newest = []
        found[attempt["id"]] = Known(tuple(attempt.get("steps") or ()), newest[0]["id"] if newest else "")
    return found


class Watching:
    """Shows one attempt: its steps and its transcript."""

    def __init__(
        self, client: Client, attempt: Any, screen: Screen, *, prefix: str, as_json: bool, known: Known
    ) -> None:
        self.attempt = attempt
        self.steps = StepLog(known.steps)
        self._screen = screen
        self._prefix = prefix
        self._detail: str | None = None
        self.transcript = telling(
            client, attempt["sessionId"], screen, as_json=as_json, prefix=prefix, after=known.message
        )

    def hear(self, news: News) -> None:
        """Show what is new in the transcript."""
        try:
            self.transcript.hear(news.of(self.attempt["sessionId"]), over=self.attempt["status"] not in WORKING)
        except ApiError as error:
            if error.http_status != 404:  # its session does not exist yet
                raise

    def tell_steps(self) -> None:
        for step in self.steps.news(self.attempt.get("steps") or []):
            if step["status"] != "running":
                colour = STEP_COLOURS.get(state_of(step))
                fatal = self.attempt["status"] == "failed" and step.get("error") == self.attempt.get("error")
                self._screen.note(
                    f"{self._prefix}{described(step, error=not fatal)}", fg=colour
                )  # the final message includes it
            elif not self._screen.terminal:
                self._screen.note(f"{self._prefix}… {name_of(step)}")
        detail = self.attempt.get("stepDetail")
        if detail and detail != self._detail and not self._screen.terminal:
            self._screen.note(f"{self._prefix}… {printable(detail)}")
        self._detail = detail

    @property
    def doing(self) -> str:
        """The text for the status line."""
        attempt = self.attempt
        if attempt["status"] == "queued":
            place = attempt.get("queuePosition")
            return f"waiting in the queue, position {place}" if place else "waiting in the queue"
        step = attempt.get("step")
        words = DOING.get(str(step), str(step or "starting").replace("_", " "))
        if detail := attempt.get("stepDetail"):
            words = printable(detail)
        if step == "agent" and (doing := self.transcript.doing):
            words = f"{words}: {doing}"
        return words


class Following:
    """Follows a task. `number` selects one attempt. `as_json` prints only complete messages. `seen` is what was already shown, by
    attempt."""

    def __init__(
        self,
        client: Client,
        task: Any,
        screen: Screen,
        *,
        number: int | None = None,
        as_json: bool = False,
        seen: Mapping[str, Known] | None = None,
    ) -> None:
        self._client = client
        self._task = task
        self._path = f"/tasks/{segment(task['id'])}"
        self._screen = screen
        self._number = number
        self._as_json = as_json
        self._watched: dict[str, Watching] = {}
        self._agents = Agents(client)
        self._seen = seen or {}
        typing = sys.stdin.isatty() and screen.terminal
        self._answering = Answering(client, screen, {"taskId": task["id"]}, f"task answer {task['id']}", typing=typing)

    def run(self) -> Any:
        """Return the task once all its attempts have stopped. Ctrl-C raises KeyboardInterrupt."""
        return stay(self._client, {"taskId": self._task["id"]}, self._screen, self._answering, self._look)

    def _look(self, news: News) -> Any:
        """Fetch the task, show new messages and then the steps, because a step ends after its messages. Return the task if it has
        stopped."""
        if news.again or news.has("task", "attempt", "preparation"):
            self._task = self._client.get(self._path)
            self._watch()
        for watching in self._watched.values():
            watching.hear(news)
            if not self._as_json:
                watching.tell_steps()
        self._say_what_goes_on()
        return self._task if self._resting() else None

    def _watch(self) -> None:
        attempts = self._chosen()
        many = len(attempts) > 1
        for attempt in attempts:
            watched = self._watched.get(attempt["id"])
            if watched is None:
                prefix = f"{attempt['number']}│ " if many else ""
                watched = Watching(
                    self._client,
                    attempt,
                    self._screen,
                    prefix=prefix,
                    as_json=self._as_json,
                    known=self._seen.get(attempt["id"], Known()),
                )
                self._watched[attempt["id"]] = watched
                if not self._as_json:
                    self._screen.note(f"{prefix}{self._who(attempt)}", dim=True)
            watched.attempt = attempt

    def _chosen(self) -> list[Any]:
        return chosen(self._task, self._number)

    def _who(self, attempt: Any) -> str:
        model = f", {printable(attempt['model'])}" if attempt.get("model") else ""
        return f"attempt {attempt['number']}: {self._agents.label(attempt['agent'])}{model}"

    def _resting(self) -> bool:
        if self._task["status"] in {"done", "cancelled"}:
            return not any(one["status"] == "running" for one in self._chosen())
        attempts = self._chosen()
        return bool(attempts) and not any(one["status"] in WORKING for one in attempts)

    def _say_what_goes_on(self) -> None:
        working = [one for one in self._watched.values() if one.attempt["status"] in WORKING]
        if len(working) == 1:
            self._screen.status(working[0].doing)
        elif working:
            self._screen.status("   ".join(f"{one.attempt['number']} {one.doing}" for one in working))
        else:
            blocked = ", ".join(self._task.get("blockedBy") or [])
            self._screen.status(f"waiting for {blocked}" if blocked else "waiting to start")


def well(task: Any, number: int | None = None) -> bool:
    """Return whether the outcome is a success."""
    if task["status"] == "done":
        return True
    return any(one["status"] in WELL for one in chosen(task, number))


def chosen(task: Any, number: int | None) -> list[Any]:
    """Return the attempt with this number; without a number, all that are not archived."""
    attempts = task.get("attempts") or []
    if number is not None:
        return [one for one in attempts if one["number"] == number]
    return [one for one in attempts if one["status"] != "archived"]


def leave(screen: Screen, task: Any) -> NoReturn:
    """Exit after Ctrl-C."""
    screen.clear()
    echo("\nThe task continues on the server.", err=True)
    echo(f"To follow it: sandyard task logs {task['id']} --follow", err=True)
    echo(f"To stop it:   sandyard task stop {task['id']}", err=True)
    sys.exit(INTERRUPTED)
