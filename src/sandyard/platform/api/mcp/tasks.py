"""MCP tools: tasks."""

from __future__ import annotations

import contextlib
from typing import Annotated

from pydantic import Field

from sandyard.kit.errors import ConflictError, NotFoundError
from sandyard.platform.api.git_views import DiffView
from sandyard.platform.api.mcp import git, transcript
from sandyard.platform.api.mcp.arguments import Paged, ProjectId, SessionId, TaskId, wait_field
from sandyard.platform.api.mcp.asks import list_pending
from sandyard.platform.api.mcp.event_wait import wait_for_events
from sandyard.platform.api.mcp.task_states import (
    AttemptState,
    TaskList,
    TaskState,
    TaskStatusReport,
    describe_state,
    describe_status,
    is_at_rest,
    summarize,
)
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.mcp.transcript import Transcript
from sandyard.platform.api.refs import RepositoryPath
from sandyard.platform.api.schema import Input, example
from sandyard.platform.api.task_views import TaskView
from sandyard.platform.db import models
from sandyard.platform.domain.events.model import EventFilter
from sandyard.platform.domain.tasks.fields import (
    MAX_FEEDBACK,
    MAX_NEEDS,
    AgentName,
    Branch,
    Description,
    ModelName,
    Priority,
    TaskFields,
    Title,
    WantedAttempt,
)
from sandyard.platform.domain.tasks.model import Column

tools = Toolbox()
TASK = "tsk_00mwhnkzc0a1b2c3d4e5"
Attempt = Annotated[
    int | None,
    Field(ge=1, le=10_000, description="The number of the attempt, if there are several. Default: the newest."),
]


class CreateTask(Input):
    model_config = example(
        projectId="prj_0mh3k7a1x2abcdefghij",
        title="Fix the login",
        description="Upper-case names cannot sign in. Write a test first.",
        start=True,
    )

    project_id: ProjectId
    title: Title
    description: Description = Field(
        default="", description="The full instructions for the agent. It knows nothing else."
    )
    agent: AgentName | None = Field(default=None, description="The agent. Default: the project's.", examples=["demo"])
    model: ModelName | None = Field(default=None, description="The model. Default: the project's.")
    attempts: int = Field(
        default=1, ge=1, le=8, description="How many agents work on it in parallel, to pick one of their results."
    )
    base_branch: Branch | None = Field(
        default=None, description="The branch to start from. Default: the project's base branch."
    )
    from_session_id: SessionId | None = Field(
        default=None,
        description="A session in the same project to continue from: each agent gets a copy of its sandbox. Default: the base branch.",
    )
    priority: Priority = 0
    needs: list[TaskId] = Field(
        default_factory=list, max_length=MAX_NEEDS, description="Tasks in the same project that must be done first."
    )
    start: bool = Field(
        default=True, description="True: start immediately or as soon as possible. False: leave it in the backlog."
    )


class TaskReference(Input):
    model_config = example(taskId=TASK)

    task_id: TaskId


class RetryTask(TaskReference):
    model_config = example(taskId=TASK, message="Use the existing helper instead.")

    message: str | None = Field(
        default=None,
        min_length=1,
        max_length=50_000,
        description="Message to the agent when a failed or stopped attempt continues.",
    )


class ListTasks(Paged):
    model_config = example(projectId="prj_0mh3k7a1x2abcdefghij", status="in_review")

    project_id: ProjectId | None = Field(default=None, description="Only tasks of this project.")
    status: Column | None = Field(default=None, description="Only tasks in this column.")
    words: str | None = Field(
        default=None, max_length=200, description="Only tasks with these words in title or description."
    )


class WaitForTask(TaskReference):
    model_config = example(taskId=TASK, waitSeconds=300)

    wait_seconds: Annotated[float, wait_field(300)]


class SendFeedback(TaskReference):
    model_config = example(taskId=TASK, feedback="The test does not cover names with spaces.")

    feedback: str = Field(min_length=1, max_length=MAX_FEEDBACK, description="The feedback for the agent.")


class PickAttempt(TaskReference):
    model_config = example(taskId=TASK, attempt=2)

    attempt: int = Field(ge=1, le=10_000, description="The number of the attempt.")


class TaskDiff(TaskReference):
    model_config = example(taskId=TASK, paths=["src/login.py"])

    attempt: Attempt = None
    paths: list[RepositoryPath] = Field(default_factory=list, max_length=1000, description="Only these paths.")
    patches: bool = Field(default=True, description="Include the changed lines.")


class TaskTranscript(Paged):
    model_config = example(taskId=TASK, limit=20)

    task_id: TaskId
    attempt: Attempt = None


@tools.add("create_task", title="Create a task", limit="create")
async def create_task(call: Call, arguments: CreateTask) -> TaskStatusReport:
    """Create a task for a coding agent and start it.

    The agent works in its own sandbox on its own branch. The outcome is a pull request, a question, or a failure with its transcript. Call
    wait_for_task next.
    """
    wanted = WantedAttempt(agent=arguments.agent, model=arguments.model)
    fields = TaskFields(
        title=arguments.title,
        description=arguments.description,
        agent=arguments.agent,
        model=arguments.model,
        attempts=[wanted] * arguments.attempts if arguments.attempts > 1 else [],
        base_branch=arguments.base_branch,
        priority=arguments.priority,
    )
    row = await call.services.tasks.create(
        call.caller,
        arguments.project_id,
        fields,
        from_session_id=arguments.from_session_id,
        needs=arguments.needs,
        start=arguments.start,
    )
    call.add_audit_detail(target=row.id)
    return await _get_status(call, row)


@tools.add("get_task", title="Get a task", reads=True)
async def get_task(call: Call, arguments: TaskReference) -> TaskState:
    """Get a task's state: its attempts, open requests, pull request, and what you can do next."""
    return await _get_state(call, await call.services.tasks.get(call.caller, arguments.task_id))


@tools.add("list_tasks", title="List tasks", reads=True)
async def list_tasks(call: Call, arguments: ListTasks) -> TaskList:
    """List tasks by column, in board order."""
    tasks = call.services.tasks
    found = await tasks.list(
        call.caller, arguments.page, project_id=arguments.project_id, status=arguments.status, q=arguments.words
    )
    cards = await tasks.cards.list_cards(found.items)
    return TaskList(items=[summarize(TaskView.from_card(card)) for card in cards], next_cursor=found.next_cursor)


@tools.add("wait_for_task", title="Wait for a task", reads=True, waits=True)
async def wait_for_task(call: Call, arguments: WaitForTask) -> TaskState:
    """Wait until a task stops (`rests`: in review, done, failed or stopped) or one of its agents needs an answer (`asks`).

    If the time runs out first, the task continues: call again.
    """

    async def load() -> TaskState:
        return await _get_state(call, await call.services.tasks.get(call.caller, arguments.task_id))

    return await wait_for_events(
        call,
        EventFilter(task_id=arguments.task_id),
        load,
        lambda found: found.rests or bool(found.asks),
        _progress,
        arguments.wait_seconds,
    )


@tools.add("start_task", title="Start a task", limit="execute")
async def start_task(call: Call, arguments: TaskReference) -> TaskStatusReport:
    """Start a task that is in the backlog."""
    return await _get_status(call, await call.services.tasks.move(call.caller, arguments.task_id, Column.IN_PROGRESS))


@tools.add("send_feedback", title="Request changes", limit="execute")
async def send_feedback(call: Call, arguments: SendFeedback) -> TaskStatusReport:
    """Send a task that is in review back to its agent with feedback.

    The feedback becomes the agent's next prompt, and new commits go to the same pull request.
    """
    row = await call.services.tasks.move(
        call.caller, arguments.task_id, Column.IN_PROGRESS, feedback=arguments.feedback
    )
    return await _get_status(call, row)


@tools.add("stop_task", title="Stop a task", limit="execute", destroys=True, repeats=True)
async def stop_task(call: Call, arguments: TaskReference) -> TaskStatusReport:
    """Stop a task and its attempts. Its branch and transcript are kept; retry_task continues it."""
    return await _get_status(call, await call.services.tasks.stop(call.caller, arguments.task_id))


@tools.add("retry_task", title="Retry a task", limit="execute")
async def retry_task(call: Call, arguments: RetryTask) -> TaskStatusReport:
    """Retry a task that failed or was stopped, from its existing work. A task that is done starts over."""
    return await _get_status(
        call, await call.services.tasks.retry(call.caller, arguments.task_id, message=arguments.message)
    )


@tools.add("pick_attempt", title="Pick an attempt", limit="execute")
async def pick_attempt(call: Call, arguments: PickAttempt) -> TaskStatusReport:
    """Choose which attempt at a task becomes the pull request. The others are archived."""
    await call.services.attempts.pick(call.caller, arguments.task_id, str(arguments.attempt))
    return await _get_status(call, await call.services.tasks.get(call.caller, arguments.task_id))


@tools.add("task_diff", title="Show a task's changes", reads=True)
async def task_diff(call: Call, arguments: TaskDiff) -> DiffView:
    """Show what an attempt has changed since its base, file by file.

    Does not resume the sandbox. Files that are too large to show are marked as truncated: request single paths then.
    """
    attempt = await _get_attempt(call, arguments.task_id, arguments.attempt)
    if attempt.sandbox_id is None:
        raise ConflictError(f"Attempt {attempt.number} has no sandbox yet, so there are no changes to show.")
    diff = await call.services.git.get_diff(
        call.caller, attempt.sandbox_id, against="base", paths=arguments.paths, patches=arguments.patches
    )
    return git.limit_size(diff)


@tools.add("task_transcript", title="Read a task's transcript", reads=True)
async def task_transcript(call: Call, arguments: TaskTranscript) -> Transcript:
    """Read an attempt's transcript, newest first: prompts, answers, thoughts, plans and tool calls."""
    attempt = await _get_attempt(call, arguments.task_id, arguments.attempt)
    if attempt.session_id is not None:
        with contextlib.suppress(NotFoundError):
            return transcript.get_page(
                await call.services.sessions.list_messages(call.caller, attempt.session_id, arguments.page)
            )
    raise ConflictError(f"Attempt {attempt.number} has no session: it has not started, or its session was deleted.")


async def _get_state(call: Call, row: models.Task) -> TaskState:
    view = TaskView.from_card(await call.services.tasks.cards.get_card(row))
    return describe_state(view, [] if is_at_rest(view) else await list_pending(call, task_id=row.id))


async def _get_status(call: Call, row: models.Task) -> TaskStatusReport:
    return describe_status(TaskView.from_card(await call.services.tasks.cards.get_card(row)))


async def _get_attempt(call: Call, task_id: str, number: int | None) -> AttemptState:
    found = await _get_state(call, await call.services.tasks.get(call.caller, task_id))
    selected = next((attempt for attempt in reversed(found.attempts) if number in (None, attempt.number)), None)
    if selected is None:
        raise NotFoundError(
            f"Task {task_id} has not been started." if number is None else f"Task {task_id} has no attempt {number}."
        )
    return selected


def _progress(found: TaskState) -> str:
    running = [attempt for attempt in found.attempts if attempt.status == "running"]
    steps = ", ".join(f"attempt {attempt.number}: {attempt.step or 'starting'}" for attempt in running)
    return f"{found.hint} {steps}".strip()
