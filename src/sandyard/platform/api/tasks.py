"""Tasks on a project's board and their attempts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query, Request, Response
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, example, id_in_path
from sandyard.platform.api.task_views import (
    ATTEMPT,
    PROJECT,
    SESSION,
    TASK,
    AttemptList,
    BoardView,
    ProjectCounts,
    QueuedAttempt,
    QueueView,
    TaskCounts,
    TaskView,
)
from sandyard.platform.domain.paging import MAX_LIMIT
from sandyard.platform.domain.projects.model import BudgetSettings
from sandyard.platform.domain.tasks import attempts as attempt_service
from sandyard.platform.domain.tasks import board
from sandyard.platform.domain.tasks.columns import MAX_WORDS, SEARCHED_CHARACTERS, BoardFilter, Show
from sandyard.platform.domain.tasks.fields import (
    MAX_ATTEMPTS,
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

router = api_router("tasks")
Tasks = Annotated[board.Tasks, inject("tasks")]
Attempts = Annotated[attempt_service.Attempts, inject("attempts")]
TaskId = Annotated[str, id_in_path("task", TASK)]
SearchWords = Annotated[
    str | None,
    Query(
        max_length=200,
        description=f"Matches tasks that contain each word in the title, the first {SEARCHED_CHARACTERS:,} characters of the description, "
        f"or a pull request's branch or number; or the task's id. Only the first {MAX_WORDS} different words are used.",
    ),
]
Need = Annotated[str, Field(min_length=1, max_length=40, examples=[TASK])]
Needs = Annotated[
    list[Need], Field(max_length=MAX_NEEDS, description="Ids of tasks in the same project that must be done first.")
]
Wanted = Annotated[
    list[WantedAttempt],
    Field(
        max_length=MAX_ATTEMPTS,
        description="Attempts to run in parallel, one session each, to pick one from. Empty means one.",
    ),
]
FromSession = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=40,
        examples=[SESSION],
        description="A session of the same project. Each attempt starts from a copy of its sandbox, with commits and uncommitted files, "
        "and with running processes if the isolation level allows it. The copies are made when the first attempt starts. Null means the "
        "base branch.",
    ),
]
COLUMN_LIMIT = 25
_NOT_NULLABLE = frozenset(("title", "description", "attempts", "priority", "budget"))
"""Fields that a task cannot be without: null means the same as leaving them out."""


class TaskInput(Input):
    """The fields of a new task, created by a user or a schedule."""

    title: Title
    description: Description = Field(default="", description="The full instructions for the agent.")
    agent: AgentName | None = Field(default=None, description="Null means the project's agent.", examples=["demo"])
    model: ModelName | None = Field(
        default=None, description="Null means the project's model, or else the agent's default."
    )
    attempts: Wanted = Field(default_factory=list)
    base_branch: Branch | None = Field(default=None, description="Null means the project's base branch.")
    priority: Priority = 0
    budget: BudgetSettings = Field(
        default_factory=BudgetSettings, description="Null limits are taken from the project."
    )

    def to_fields(self) -> TaskFields:
        return TaskFields(**{name: getattr(self, name) for name in TaskFields.model_fields})


class NewTask(TaskInput):
    model_config = example(
        projectId=PROJECT,
        title="Fix the login",
        description="Upper-case names cannot sign in.",
        agent="demo",
        start=True,
    )

    project_id: str = Field(min_length=1, max_length=40)
    from_session_id: FromSession = None
    needs: Needs = Field(default_factory=list)
    start: bool = Field(
        default=False,
        description="Start immediately, or as soon as all tasks in `needs` are done and the column has space.",
    )


class TaskChange(Input):
    """Fields left out are not changed. Attempts that have started are not affected until they are retried or sent back."""

    model_config = example(title="Fix the login for good", priority=5)

    title: Title | None = None
    description: Description | None = None
    agent: AgentName | None = None
    model: ModelName | None = None
    attempts: Wanted | None = None
    base_branch: Branch | None = None
    priority: Priority | None = None
    budget: BudgetSettings | None = None
    from_session_id: FromSession = None
    needs: Needs | None = None
    start: bool | None = Field(default=None, description="Whether to start automatically as soon as possible.")


class Move(Input):
    model_config = example(status="in_progress", position=0)

    status: Column
    position: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Position in the column, starting at 0. Default: where new tasks go.",
    )
    feedback: str | None = Field(
        default=None, max_length=MAX_FEEDBACK, description="From review to in progress: the feedback for the agent."
    )


class Retry(Input):
    model_config = example(message="Use the existing helper instead.")

    message: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_FEEDBACK,
        description="Message to the agent when a failed or stopped attempt continues.",
    )
    attempt_id: str | None = Field(
        default=None, max_length=60, description="Continue only this attempt. Default: all that failed or were stopped."
    )


class Pick(Input):
    model_config = example(attemptId=ATTEMPT)

    attempt_id: str = Field(min_length=1, max_length=40, description="The attempt's id or number.")


@router.post("/tasks", name="task.create", status_code=201, dependencies=[limit_rate("create")])
async def create(request: Request, caller: Caller, tasks: Tasks, body: NewTask) -> TaskView:
    """Create a task in the backlog, and start it if requested."""
    row = await tasks.create(
        caller,
        body.project_id,
        body.to_fields(),
        from_session_id=body.from_session_id,
        needs=body.needs,
        start=body.start,
    )
    add_audit_detail(request, target=row.id)
    return TaskView.from_card(await tasks.cards.get_card(row))


@router.get("/tasks", name="task.list")
async def list_(
    caller: Caller,
    tasks: Tasks,
    page: Paging,
    project_id: Annotated[str | None, Query(alias="projectId", max_length=40)] = None,
    status: Column | None = None,
    q: SearchWords = None,
) -> Page[TaskView]:
    """List tasks by column, in board order. `steps` of attempts are left out."""
    found = await tasks.list(caller, page, project_id=project_id, status=status, q=q)
    cards = await tasks.cards.list_cards(found.items)
    return Page(items=[TaskView.from_card(card) for card in cards], next_cursor=found.next_cursor)


@router.get("/tasks/counts", name="task.counts", dependencies=[limit_large_responses()])
async def counts(caller: Caller, tasks: Tasks) -> TaskCounts:
    """Count tasks by project and column."""
    found = await tasks.count_by_column(caller)
    return TaskCounts(
        items=[
            ProjectCounts(project_id=project, columns=columns, failed=failed)
            for project, (columns, failed) in found.items()
        ]
    )


@router.get("/board", name="task.board", dependencies=[limit_large_responses()])
async def show_board(
    caller: Caller,
    tasks: Tasks,
    project_id: Annotated[str | None, Query(alias="projectId", max_length=40)] = None,
    status: Annotated[Column | None, Query(description="Only this column.")] = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000, description="Skip this many tasks of each column.")] = 0,
    limit: Annotated[int, Query(ge=0, le=MAX_LIMIT, description="Maximum number of tasks per column.")] = COLUMN_LIMIT,
    q: SearchWords = None,
    agent: Annotated[
        str | None,
        Query(max_length=100, description="Only tasks that this agent has worked on, works on or will work on."),
    ] = None,
    show: Show | None = None,
) -> BoardView:
    """Get the board: the number of tasks in each column, and the first of each.

    Descriptions of tasks and `steps` of attempts are left out.
    """
    filters = BoardFilter(q or "", agent, show)
    page = await tasks.get_board(caller, filters, project_id=project_id, only=status, offset=offset, limit=limit)
    return BoardView.from_page(page)


@router.get("/tasks/{task_id}", name="task.get", dependencies=[limit_large_responses()])
async def get(caller: Caller, tasks: Tasks, task_id: TaskId) -> TaskView:
    return TaskView.from_card(await tasks.cards.get_card(await tasks.get(caller, task_id)))


@router.patch("/tasks/{task_id}", name="task.update", dependencies=[limit_rate("execute")])
async def update(request: Request, caller: Caller, tasks: Tasks, task_id: TaskId, body: TaskChange) -> TaskView:
    """Change a task.

    While it runs on behalf of somebody else, or will start so, only they, the project's owner and administrators may change anything but
    `priority`, `needs` and `start`. With `start`, it starts on behalf of the caller or of nobody.
    """
    given: dict[str, Any] = {name: getattr(body, name) for name in body.model_fields_set}
    add_audit_detail(request, changed=sorted(given))
    needs, start = given.pop("needs", None), given.pop("start", None)
    changes = {name: value for name, value in given.items() if value is not None or name not in _NOT_NULLABLE}
    row = await tasks.update(caller, task_id, changes, needs=needs, start=start)
    return TaskView.from_card(await tasks.cards.get_card(row))


@router.delete("/tasks/{task_id}", name="task.delete", status_code=204)
async def delete(caller: Caller, tasks: Tasks, task_id: TaskId) -> Response:
    """Delete a task. Allowed for its creator, the project's owner and administrators. Its attempts are stopped; its sessions are kept."""
    await tasks.delete(caller, task_id)
    return Response(status_code=204)


@router.post("/tasks/{task_id}/move", name="task.move", dependencies=[limit_rate("execute")])
async def move(request: Request, caller: Caller, tasks: Tasks, task_id: TaskId, body: Move) -> TaskView:
    """Move a task to another column, or within its column.

    Moving to in progress starts it. Moving from there to the backlog or to cancelled stops it. Moving from review back to in progress
    requires feedback.
    """
    add_audit_detail(request, to=body.status)
    row = await tasks.move(caller, task_id, body.status, position=body.position, feedback=body.feedback)
    return TaskView.from_card(await tasks.cards.get_card(row))


@router.post("/tasks/{task_id}/stop", name="task.stop", dependencies=[limit_rate("execute")])
async def stop(caller: Caller, tasks: Tasks, task_id: TaskId) -> TaskView:
    """Cancel a task and stop its attempts. Idempotent."""
    return TaskView.from_card(await tasks.cards.get_card(await tasks.stop(caller, task_id)))


@router.post("/tasks/{task_id}/retry", name="task.retry", dependencies=[limit_rate("execute")])
async def retry(
    caller: Caller, tasks: Tasks, task_id: TaskId, body: Annotated[Retry, Body(default_factory=Retry)]
) -> TaskView:
    """Retry a task.

    Attempts that failed or were stopped continue from their existing work, with the message if there is one. A task that is done starts
    over.
    """
    row = await tasks.retry(caller, task_id, message=body.message, attempt_id=body.attempt_id)
    return TaskView.from_card(await tasks.cards.get_card(row))


@router.get("/tasks/{task_id}/attempts", name="task.attempts", dependencies=[limit_large_responses()])
async def list_attempts(caller: Caller, tasks: Tasks, task_id: TaskId) -> AttemptList:
    """List attempts with their changes, verification, cost and duration, for comparison."""
    return AttemptList.from_card(await tasks.cards.get_card(await tasks.get(caller, task_id)))


@router.post("/tasks/{task_id}/pick", name="task.pick", dependencies=[limit_rate("execute")])
async def pick(
    request: Request, caller: Caller, tasks: Tasks, attempts: Attempts, task_id: TaskId, body: Pick
) -> TaskView:
    """Choose the attempt that becomes the pull request. The others are archived."""
    task = await tasks.get(caller, task_id)
    row = await attempts.pick(caller, task_id, body.attempt_id)
    add_audit_detail(request, attempt=row.id)
    return TaskView.from_card(await tasks.cards.get_card(task))


@router.get("/queue", name="task.queue", dependencies=[limit_large_responses()])
async def queue(caller: Caller, tasks: Tasks, attempts: Attempts) -> QueueView:
    """List waiting attempts in order, with what they wait for. Positions include other users' attempts."""
    waiting = await attempts.list_queue(caller)
    titles = await tasks.cards.get_titles([row.task_id for row, _, _ in waiting])
    return QueueView(
        items=[
            QueuedAttempt.from_row(row, titles.get(row.task_id, ""), position, reason)
            for row, position, reason in waiting
        ]
    )
