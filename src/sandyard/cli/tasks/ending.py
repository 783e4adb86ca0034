"""The end of following a task: print the outcome and exit with a matching code."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandyard.cli.advice import advice_for
from sandyard.cli.connection import segment
from sandyard.cli.errors import FAILED, ApiError
from sandyard.cli.output import print_json, printable
from sandyard.cli.tasks.following import Following, Known, chosen, leave, well
from sandyard.cli.tasks.screen import Screen

if TYPE_CHECKING:
    from sandyard.cli.client import Client


def follow_to_the_end(
    client: Client,
    task: Any,
    *,
    number: int | None = None,
    as_json: bool = False,
    seen: Mapping[str, Known] | None = None,
) -> None:
    """Follow a task until its attempts stop, print the outcome, and exit with 1 if it was not successful. `seen` is not printed again."""
    with Screen() as screen:
        try:
            task = Following(client, task, screen, number=number, as_json=as_json, seen=seen).run()
        except KeyboardInterrupt:
            leave(screen, task)
        if as_json:
            print_json(task, compact=True)
        else:
            for line in ended(task, number):
                screen.note(line)
            for line in where(task, repository_of(client, task)):
                screen.note(line)
            if url := address(task):
                screen.line(url)
    if not well(task, number):
        sys.exit(FAILED)


def ended(task: Any, number: int | None = None) -> Iterator[str]:
    """Yield the outcome of each attempt and suggestions for what to do next."""
    name = shlex.quote(task["id"])
    attempts = chosen(task, number)
    for attempt in attempts:
        yield from _describe_outcome(attempt, several=len(attempts) > 1)
    if len(ready := [one for one in attempts if one["status"] == "ready"]) > 0:
        numbers = ", ".join(str(one["number"]) for one in ready)
        yield f"To compare them: sandyard task compare {name}"
        yield f"To pick one (of {numbers}): sandyard task pick {name} NUMBER"
    elif attempts and all(one["status"] in {"failed", "cancelled"} for one in attempts):
        if any(one.get("errorCode") == "permission_refused" for one in attempts):
            yield f"To allow this and continue: sandyard task allow {name}"
        yield from dict.fromkeys(filter(None, (advice_for(one.get("errorCode")) for one in attempts)))
        if any(one.get("errorCode") == "verify_failed" for one in attempts):
            yield f"To see the output of the check: sandyard task logs {name}"
            yield f"To change the check: sandyard project set {shlex.quote(str(task.get('projectId')))} --verify COMMAND"
            yield f"To continue with another agent: sandyard task retry {name} --agent NAME"
        yield f"To retry: sandyard task retry {name}"
    if task.get("error") and not any(one.get("error") for one in attempts):
        yield printable(str(task["error"]))


def where(task: Any, repository: str) -> Iterator[str]:
    """Yield how to review a branch that was pushed to a remote without pull requests."""
    pull = pull_of(task)
    if not pull or pull.get("number") is not None or not pull.get("headBranch") or not repository:
        return
    head, base = str(pull["headBranch"]), str(pull.get("baseBranch") or "HEAD")
    if Path(repository).is_dir():
        words = ["git", "-C", repository, "diff", f"{base}...{head}"]
        yield f"To review it: {shlex.join(words)}"
    else:
        fetch = shlex.join(["git", "fetch", repository, head])
        yield f"To review it in a clone: {fetch} && git diff {shlex.quote(base)}...FETCH_HEAD"
    yield f"To merge it: {merge_command(task, repository, base, head)}"


def merge_command(task: Any, repository: str, base: str, head: str) -> str:
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
        yield f"{who} failed: {printable(str(attempt.get('error') or 'unknown error'))}"
    elif status == "cancelled":
        yield f"{who} was stopped."
    elif status == "in_review":
        pull = attempt.get("pullRequest") or {}
        yield f"{who} is ready for review{_diff_size(attempt)}."
        if pull and pull.get("number") is None:
            yield f"Pushed branch {printable(str(pull.get('headBranch') or ''))}, because this remote does not support pull requests."
    elif status == "ready":
        yield f"{who} is done{_diff_size(attempt)}."
    else:
        yield f"{who} is {printable(status.replace('_', ' '))}."


def _diff_size(attempt: Any) -> str:
    diff = attempt.get("diff") or {}
    if not diff.get("files"):
        return ""
    files = "1 file" if diff["files"] == 1 else f"{diff['files']} files"
    return f": {files} changed, +{diff.get('added') or 0} -{diff.get('removed') or 0} lines"


def repository_of(client: Client, task: Any) -> str:
    """Return the repository of a task that ended with a pushed branch. Empty otherwise."""
    pull = pull_of(task)
    if not pull or pull.get("number") is not None:
        return ""
    with contextlib.suppress(ApiError):
        return str(client.get(f"/projects/{segment(task['projectId'])}").get("repository") or "")
    return ""


def pull_of(task: Any) -> Any:
    """Return a task's pull request, or its counterpart on a plain git remote. None if there is none yet."""
    if task.get("pullRequest"):
        return task["pullRequest"]
    return next((one["pullRequest"] for one in task.get("attempts") or [] if one.get("pullRequest")), None)


def address(task: Any) -> str | None:
    pull = pull_of(task)
    return printable(str(pull["url"])) if pull and pull.get("url") and pull.get("number") is not None else None
