"""Follow a task until its attempts stop: show messages, steps, questions and permission requests, then the outcome.

The state is fetched from the server whenever its feed reports an event: see `live/feed.py`.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sandyard.cli.advice import get_advice
from sandyard.cli.connection import quote_segment
from sandyard.cli.errors import FAILED, ApiError
from sandyard.cli.live.asks import AskPrompt
from sandyard.cli.live.feed import INTERRUPTED, FeedUpdate, follow_until
from sandyard.cli.live.screen import Screen
from sandyard.cli.live.transcript import Transcript, open_transcript
from sandyard.cli.output import echo, escape, print_json
from sandyard.cli.tasks.lookup import AgentNames
from sandyard.cli.tasks.steps import PROGRESS_TEXTS, STEP_COLOURS, StepLog, format_step, get_step_name, get_step_state

if TYPE_CHECKING:
    from sandyard.cli.client import Client


ACTIVE = {"queued", "running"}
SUCCESSFUL = {"in_review", "ready", "merged"}


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of an attempt's progress that were already shown and are not repeated."""

    steps: tuple[Any, ...] = ()
    message: str = ""


def get_shown_state(client: Client, task: Any) -> dict[str, Shown]:
    """Return the current state of a task, by attempt."""
    found = {}
    for attempt in task.get("attempts") or []:
        newest = []
        if session_id := attempt.get("sessionId"):
            try:
                newest = client.get(f"/sessions/{quote_segment(session_id)}/messages", limit=1)["items"]
            except ApiError as error:
                if error.http_status != 404:
                    raise
        found[attempt["id"]] = Shown(tuple(attempt.get("steps") or ()), newest[0]["id"] if newest else "")
    return found


class AttemptFollower:
    """Shows one attempt: its steps and its transcript."""

    def __init__(
        self, client: Client, attempt: Any, screen: Screen, *, prefix: str, as_json: bool, known: Shown
    ) -> None:
        self.attempt = attempt
        self.steps = StepLog(known.steps)
        self._screen = screen
        self._prefix = prefix
        self._detail: str | None = None
        self._transcript: Transcript | None = None
        self._open_transcript = partial(
            open_transcript, client, screen=screen, as_json=as_json, prefix=prefix, after=known.message
        )

    def handle_events(self, update: FeedUpdate) -> None:
        """Show what is new in the transcript."""
        session_id = self.attempt.get("sessionId")
        if session_id is None:  # its session does not exist yet
            return
        if self._transcript is None:
            self._transcript = self._open_transcript(session_id)
        try:
            self._transcript.handle_events(
                update.for_session(session_id), has_ended=self.attempt["status"] not in ACTIVE
            )
        except ApiError as error:
            if error.http_status != 404:  # it was deleted
                raise

    def show_steps(self) -> None:
        for step in self.steps.list_new(self.attempt.get("steps") or []):
            if step["status"] != "running":
                colour = STEP_COLOURS.get(get_step_state(step))
                fatal = self.attempt["status"] == "failed" and step.get("error") == self.attempt.get("error")
                # the final message includes it
                self._screen.print_note(f"{self._prefix}{format_step(step, error=not fatal)}", fg=colour)
            elif not self._screen.is_terminal:
                self._screen.print_note(f"{self._prefix}… {get_step_name(step)}")
        detail = self.attempt.get("stepDetail")
        if detail and detail != self._detail and not self._screen.is_terminal:
            self._screen.print_note(f"{self._prefix}… {escape(detail)}")
        self._detail = detail

    @property
    def activity(self) -> str:
        """The text for the status line."""
        attempt = self.attempt
        if attempt["status"] == "queued":
            position = attempt.get("queuePosition")
            return f"waiting in the queue, position {position}" if position else "waiting in the queue"
        step = attempt.get("step")
        text = PROGRESS_TEXTS.get(str(step), str(step or "starting").replace("_", " "))
        if detail := attempt.get("stepDetail"):
            text = escape(detail)
        if step == "agent" and self._transcript is not None and (activity := self._transcript.activity):
            text = f"{text}: {activity}"
        return text


class TaskFollower:
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
        seen: Mapping[str, Shown] | None = None,
    ) -> None:
        self._client = client
        self._task = task
        self._path = f"/tasks/{quote_segment(task['id'])}"
        self._screen = screen
        self._number = number
        self._as_json = as_json
        self._followers: dict[str, AttemptFollower] = {}
        self._agents = AgentNames(client)
        self._seen = seen or {}
        interactive = sys.stdin.isatty() and screen.is_terminal
        self._ask_prompt = AskPrompt(
            client,
            screen,
            {"taskId": task["id"]},
            f"task answer {task['id']}",
            interactive=interactive,
            on_refresh=self._show_activity,
        )

    def run(self) -> Any:
        """Return the task once all its attempts have stopped. Ctrl-C raises KeyboardInterrupt."""
        return follow_until(self._client, {"taskId": self._task["id"]}, self._screen, self._ask_prompt, self._refresh)

    def _refresh(self, update: FeedUpdate) -> Any:
        """Fetch the task, show new messages and then the steps, because a step ends after its messages. Return the task if it has
        stopped."""
        if update.reconnected or update.has_event("task", "attempt", "preparation"):
            self._task = self._client.get(self._path)
            self._update_followers()
        for follower in self._followers.values():
            follower.handle_events(update)
            if not self._as_json:
                follower.show_steps()
        self._show_activity()
        return self._task if self._has_stopped() else None

    def _update_followers(self) -> None:
        attempts = self._select_attempts()
        many = len(attempts) > 1
        for attempt in attempts:
            follower = self._followers.get(attempt["id"])
            if follower is None:
                prefix = f"{attempt['number']}│ " if many else ""
                follower = AttemptFollower(
                    self._client,
                    attempt,
                    self._screen,
                    prefix=prefix,
                    as_json=self._as_json,
                    known=self._seen.get(attempt["id"], Shown()),
                )
                self._followers[attempt["id"]] = follower
                if not self._as_json:
                    self._screen.print_note(f"{prefix}{self._describe_attempt(attempt)}", dim=True)
            follower.attempt = attempt

    def _select_attempts(self) -> list[Any]:
        return select_attempts(self._task, self._number)

    def _describe_attempt(self, attempt: Any) -> str:
        model = f", {escape(attempt['model'])}" if attempt.get("model") else ""
        return f"attempt {attempt['number']}: {self._agents.format_label(attempt['agent'])}{model}"

    def _has_stopped(self) -> bool:
        if self._task["status"] in {"done", "cancelled"}:
            return not any(attempt["status"] == "running" for attempt in self._select_attempts())
        attempts = self._select_attempts()
        return bool(attempts) and not any(attempt["status"] in ACTIVE for attempt in attempts)

    def _show_activity(self) -> None:
        working = [follower for follower in self._followers.values() if follower.attempt["status"] in ACTIVE]
        if len(working) == 1:
            self._screen.set_status(self._describe_activity(working[0]))
        elif working:
            texts = [f"{follower.attempt['number']} {self._describe_activity(follower)}" for follower in working]
            self._screen.set_status("   ".join(texts))
        else:
            blocked = ", ".join(self._task.get("blockedBy") or [])
            waits = f"waiting for {blocked}" if blocked else "waiting to start"
            self._screen.set_status("not started" if self._task.get("startError") else waits)

    def _describe_activity(self, follower: AttemptFollower) -> str:
        is_waiting = follower.attempt.get("sessionId") in self._ask_prompt.waiting_sessions
        return "waiting for your answer" if is_waiting else follower.activity


def is_successful(task: Any, number: int | None = None) -> bool:
    """Return whether the outcome is a success."""
    if task["status"] == "done":
        return True
    return any(attempt["status"] in SUCCESSFUL for attempt in select_attempts(task, number))


def select_attempts(task: Any, number: int | None) -> list[Any]:
    """Return the attempt with this number; without a number, all that are not archived."""
    attempts = task.get("attempts") or []
    if number is not None:
        return [attempt for attempt in attempts if attempt["number"] == number]
    return [attempt for attempt in attempts if attempt["status"] != "archived"]


def exit_interrupted(screen: Screen, task: Any) -> NoReturn:
    """Exit after Ctrl-C."""
    screen.clear()
    echo("\nThe task continues on the server.", err=True)
    echo(f"To follow it: sandyard task logs {task['id']} --follow", err=True)
    echo(f"To stop it:   sandyard task stop {task['id']}", err=True)
    sys.exit(INTERRUPTED)


def follow_task(
    client: Client,
    task: Any,
    *,
    number: int | None = None,
    as_json: bool = False,
    seen: Mapping[str, Shown] | None = None,
) -> None:
    """Follow a task until its attempts stop, print the outcome, and exit with 1 if it was not successful. `seen` is not printed again."""
    with Screen() as screen:
        try:
            task = TaskFollower(client, task, screen, number=number, as_json=as_json, seen=seen).run()
        except KeyboardInterrupt:
            exit_interrupted(screen, task)
        if as_json:
            print_json(task, compact=True)
        else:
            for line in describe_end(task, number):
                screen.print_note(line)
            for line in describe_review(task, get_repository(client, task)):
                screen.print_note(line)
            if url := get_pull_url(task):
                screen.print_line(url)
    if not is_successful(task, number):
        sys.exit(FAILED)


def describe_end(task: Any, number: int | None = None) -> Iterator[str]:
    """Yield the outcome of each attempt and suggestions for what to do next."""
    name = shlex.quote(task["id"])
    attempts = select_attempts(task, number)
    for attempt in attempts:
        yield from _describe_outcome(attempt, several=len(attempts) > 1)
    if len(ready := [attempt for attempt in attempts if attempt["status"] == "ready"]) > 0:
        numbers = ", ".join(str(attempt["number"]) for attempt in ready)
        yield f"To compare them: sandyard task compare {name}"
        yield f"To pick one (of {numbers}): sandyard task pick {name} NUMBER"
    elif attempts and all(attempt["status"] in {"failed", "cancelled"} for attempt in attempts):
        if any(attempt.get("errorCode") == "permission_refused" for attempt in attempts):
            yield f"To allow this and continue: sandyard task allow {name}"
        project_id = task.get("projectId")
        advice = (get_advice(attempt.get("errorCode"), project_id=project_id) for attempt in attempts)
        yield from dict.fromkeys(filter(None, advice))
        if any(attempt.get("errorCode") == "verify_failed" for attempt in attempts):
            yield f"To see the output of the verify command: sandyard task logs {name}"
            yield f"To change the verify command: sandyard project set {shlex.quote(str(project_id))} --verify COMMAND"
            yield f"To continue with another agent: sandyard task retry {name} --agent NAME"
        yield f"To retry: sandyard task retry {name}"
    if task.get("error") and not any(attempt.get("error") for attempt in attempts):
        yield escape(str(task["error"]))


def describe_review(task: Any, repository: str) -> Iterator[str]:
    """Yield how to review a branch that was pushed to a remote without pull requests."""
    pull = get_pull(task)
    if not pull or pull.get("number") is not None or not pull.get("headBranch") or not repository:
        return
    head, base = str(pull["headBranch"]), str(pull.get("baseBranch") or "HEAD")
    if Path(repository).is_dir():
        command = ["git", "-C", repository, "diff", f"{base}...{head}"]
        yield f"To review it: {shlex.join(command)}"
    else:
        fetch = shlex.join(["git", "fetch", repository, head])
        yield f"To review it in a clone: {fetch} && git diff {shlex.quote(base)}...FETCH_HEAD"
    yield f"To merge it: {get_merge_command(task, repository, base, head)}"


def get_merge_command(task: Any, repository: str, base: str, head: str) -> str:
    """Return a git command if the base branch is checked out in a local directory, otherwise the platform's command."""
    with contextlib.suppress(OSError):
        if (Path(repository) / ".git" / "HEAD").read_text().strip() == f"ref: refs/heads/{base}":
            merge = shlex.join(["git", "-C", repository, "merge", head])
            return f"{merge} && sandyard pr refresh {shlex.quote(task['id'])}"
    return f"sandyard pr merge {shlex.quote(task['id'])}"


def _describe_outcome(attempt: Any, *, several: bool) -> Iterator[str]:
    who = f"Attempt {attempt['number']}" if several else "The task"
    status = attempt["status"]
    if status == "failed":
        yield f"{who} failed: {escape(str(attempt.get('error') or 'unknown error'))}"
    elif status == "cancelled":
        yield f"{who} was stopped."
    elif status == "in_review":
        pull = attempt.get("pullRequest") or {}
        yield f"{who} is ready for review{_format_diff_size(attempt)}."
        if pull and pull.get("number") is None:
            yield f"Pushed branch {escape(str(pull.get('headBranch') or ''))}, because this remote does not support pull requests."
    elif status == "ready":
        yield f"{who} is done{_format_diff_size(attempt)}."
    else:
        yield f"{who} is {escape(status.replace('_', ' '))}."


def _format_diff_size(attempt: Any) -> str:
    diff = attempt.get("diff") or {}
    if not diff.get("files"):
        return ""
    files = "1 file" if diff["files"] == 1 else f"{diff['files']} files"
    return f": {files} changed, +{diff.get('added') or 0} -{diff.get('removed') or 0} lines"


def get_repository(client: Client, task: Any) -> str:
    """Return the repository of a task that ended with a pushed branch. Empty otherwise."""
    pull = get_pull(task)
    if not pull or pull.get("number") is not None:
        return ""
    with contextlib.suppress(ApiError):
        return str(client.get(f"/projects/{quote_segment(task['projectId'])}").get("repository") or "")
    return ""


def get_pull(task: Any) -> Any:
    """Return a task's pull request, or its counterpart on a plain Git remote. None if there is none yet."""
    if task.get("pullRequest"):
        return task["pullRequest"]
    return next((attempt["pullRequest"] for attempt in task.get("attempts") or [] if attempt.get("pullRequest")), None)


def get_pull_url(task: Any) -> str | None:
    pull = get_pull(task)
    return escape(str(pull["url"])) if pull and pull.get("url") and pull.get("number") is not None else None
