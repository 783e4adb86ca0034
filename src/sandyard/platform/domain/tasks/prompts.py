"""Prompts to agents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from sandyard.platform.db.models import Project, Task
from sandyard.platform.db.models.message_parts import TextPart
from sandyard.platform.db.models.task_details import MessageToAgent
from sandyard.platform.domain.agents.model import PLATFORM
from sandyard.platform.domain.projects.model import ProjectSettings

MAX_OUTPUT = 12_000
"""How many characters of a failed command's output an agent gets at most. The end is kept."""
HANDED_OVER = (
    "Another agent has worked on this task before you. Look at the existing work, and do what was asked since:"
)

SANDBOX_LOST = "Its sandbox was lost and replaced, with the work that was saved last"


def format_message(text: str) -> TextPart:
    return {"type": "text", "text": text}


def format_notice(text: str, about: Literal["task", "failure", "resume"] = "task") -> TextPart:
    """Return text from the platform, marked as such for agents that must not follow it literally (`agents/acp/client.py`)."""
    return {"type": "text", "text": text, "source": PLATFORM, "about": about}


def format_task(task: Task, project: Project, branch: str, *, agents_md: bool) -> list[TextPart]:
    """Return the task in its author's words, and a description of the agent's environment."""
    settings = ProjectSettings.from_project(project)
    words = task.title if not task.description.strip() else f"{task.title}\n\n{task.description}"
    lines = [
        f"You are working in a checkout of {project.name!r}, on your own branch {branch!r}.",
        "Change only what the task needs. Leave your work in the work tree or commit it; do not push and do not open a pull "
        "request: that is done for you when you are finished.",
    ]
    if task.from_session_id is not None:
        lines.append(
            "The checkout is a copy of another session's: it may have commits and uncommitted changes of others. Continue from "
            "them; they become part of your branch."
        )
    if settings.git.commit_messages == "conventional":
        lines.append(
            "Commit messages follow Conventional Commits, as in “fix(login): keep the session after a reload”."
        )
    if settings.git.ci_files == "refuse":
        lines.append(
            "Do not commit changes of files that configure continuous integration, such as .github/workflows: a branch with such "
            "a commit is not pushed. If the task needs one, describe it instead."
        )
    if agents_md:
        lines.append("AGENTS.md in the checkout says how to work on this project.")
    if settings.verify.command:
        lines.append(f"Before your work is accepted, this command must succeed: {settings.verify.command}")
    return [format_message(words), format_notice("\n".join(lines))]


def format_feedback(messages: Sequence[MessageToAgent]) -> list[TextPart]:
    """Return people's messages, permissions granted later, and failures reported by the forge."""
    return [_format_feedback_message(message) for message in messages]


def _format_feedback_message(message: MessageToAgent) -> TextPart:
    if message.get("resume"):
        return format_notice(message["words"], "resume")
    return format_notice(message["words"], "failure") if message.get("automatic") else format_message(message["words"])


def format_failure(command: str, exit_code: int | None, output: str) -> str:
    ending = "timed out" if exit_code is None else f"ended with exit code {exit_code}"
    block = format_code_block(output[-MAX_OUTPUT:])
    return f"The verify command `{command}` {ending}. Please fix the failures. The end of its output:\n\n{block}"


def format_code_block(text: str) -> str:
    """Return the text as a fenced code block, whatever it contains."""
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    mark = "`" * (longest + 1)
    return f"{mark}\n{text.rstrip()}\n{mark}"


def format_refusal(reason: str) -> str:
    return f"Your commits could not be published. {reason} Please fix that in this checkout."


def format_retry(error: str | None) -> TextPart:
    why = f" It ended with: {error.rstrip().rstrip('.')}." if error else ""
    return format_notice(
        f"The work on this task was interrupted.{why} Look at the existing work, and finish the task.", "resume"
    )
