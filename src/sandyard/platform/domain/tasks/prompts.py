"""What an agent is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandyard.platform.db.models import Project, Task
from sandyard.platform.domain.projects.model import ProjectSettings

OUTPUT = 12_000
"""Characters of a failed command's output that an agent gets: its end."""


def of_task(task: Task, project: Project, branch: str, *, agents_md: bool) -> list[str]:
    """The task in its author's words, and where the agent is. Two texts, so that an agent that follows the first to the letter can."""
    settings = ProjectSettings.of(project)
    words = task.title if not task.description.strip() else f"{task.title}\n\n{task.description}"
    lines = [
        f"You work in a checkout of {project.name!r}, on the branch {branch!r} that is yours alone.",
        "Change what the task needs and no more. Leave your work in the work tree, or commit it; do not push and do not open a pull "
        "request: that is done for you when you are finished.",
    ]
    if settings.git.commit_messages == "conventional":
        lines.append(
            "Commit messages follow Conventional Commits, as in “fix(login): keep the session after a reload”."
        )
    if agents_md:
        lines.append("AGENTS.md in the checkout says how to work on this project.")
    if settings.verify.command:
        lines.append(f"Before your work is taken, this must succeed: {settings.verify.command}")
    return [words, "\n".join(lines)]


def of_feedback(said: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(str(one["words"]) for one in said)


def of_failure(command: str, exit_code: int | None, output: str) -> str:
    how = "did not end in its time" if exit_code is None else f"ended with exit code {exit_code}"
    return f"The check `{command}` {how}. Please mend what it found. The end of its output:\n\n{output[-OUTPUT:]}"


def of_refusal(sentence: str) -> str:
    return f"Your commits could not be published. {sentence} Please mend that in this checkout."


def of_retry(ended: str | None) -> str:
    why = f" It ended with: {ended.rstrip().rstrip('.')}." if ended else ""
    return f"The work on this task was interrupted.{why} Look at what is there already, and finish the task."
