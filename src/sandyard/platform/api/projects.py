"""Projects and who works on them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field, SecretStr, StringConstraints

from sandyard.kit.secret import Secret
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.limits import limited
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.parts import part
from sandyard.platform.api.refs import Branch
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.api.trail import note
from sandyard.platform.db.models import Project
from sandyard.platform.domain.projects import credentials as credential_service
from sandyard.platform.domain.projects import sample, service
from sandyard.platform.domain.projects.credentials import MAX_TOKEN, checked
from sandyard.platform.domain.projects.model import ProjectSettings

router = api_router("projects")
Projects = Annotated[service.Projects, part("projects")]
Samples = Annotated[sample.Samples, part("samples")]
Credentials = Annotated[credential_service.Credentials, part("credentials")]
ProjectId = Annotated[str, id_in_path("project", "prj_0mh3k7a1x2abcdefghij")]
MemberId = Annotated[str, id_in_path("user", "usr_0mh3k7a1x2abcdefghij")]
ProjectName = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
Repository = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1000,
        description="An https or ssh address without credentials in it. A path on the platform's own machine: by administrators only.",
        examples=["https://example.org/website.git"],
    ),
]
BaseBranch = Annotated[Branch, Field(description="Null: the remote's default branch.")]
_SETTINGS: dict[str, Any] = {
    "commandPolicy": {"allow": [], "deny": ["\\bsudo\\b"]},
    "idleSeconds": 600,
    "template": "base",
}


class ProjectView(Model):
    model_config = example(
        id="prj_0mh3k7a1x2abcdefghij",
        ownerId="usr_0mh3k7a1x2abcdefghij",
        name="website",
        repository="https://example.org/website.git",
        baseBranch="main",
        settings=_SETTINGS,
        createdAt="2026-01-31T10:00:00.000Z",
        updatedAt="2026-01-31T10:00:00.000Z",
        archivedAt=None,
    )

    id: str
    owner_id: str
    name: str
    repository: str | None
    base_branch: str | None
    settings: ProjectSettings
    created_at: Instant
    updated_at: Instant
    archived_at: Instant | None


class NewProject(Input):
    model_config = example(
        name="website", repository="https://example.org/website.git", baseBranch="main", settings=_SETTINGS
    )

    name: ProjectName
    repository: Repository | None = None
    base_branch: BaseBranch | None = None
    settings: ProjectSettings = Field(default_factory=ProjectSettings)
    token: SecretStr | None = Field(
        default=None, min_length=1, max_length=MAX_TOKEN, description="Opens the repository; never shown again."
    )
    username: str | None = Field(
        default=None, min_length=1, max_length=200, description="Beside the token; x-access-token if left out."
    )


class ProjectChange(Input):
    """What is left out stays; `settings` is replaced as a whole."""

    model_config = example(name="web site", settings=_SETTINGS)

    name: ProjectName | None = None
    repository: Repository | None = None
    base_branch: BaseBranch | None = None
    settings: ProjectSettings | None = None
    archived: bool | None = None


class SampleTask(Model):
    model_config = example(title="Count words, not gaps", description="run: python3 -m unittest")

    title: str
    description: str = Field(description="For people, and with instructions that the demo agent follows.")


class SampleProject(Model):
    project: ProjectView
    tasks: list[SampleTask] = Field(
        description="What could be done in it first; as `title` and `description` of POST /tasks."
    )


class Member(Model):
    model_config = example(id="usr_0mh3k7a1x2abcdefghij", name="maria")

    id: str
    name: str


class Members(Model):
    items: list[Member]


@router.get("/projects", name="project.list")
async def list_projects(
    caller: Caller,
    page: Paging,
    projects: Projects,
    archived: Annotated[bool, Query(description="Those that were archived instead.")] = False,
) -> Page[ProjectView]:
    """Those the caller owns or is a member of; administrators see all."""
    return Page[ProjectView].of(await projects.list(caller, page, archived=archived), view)


@router.post("/projects", name="project.create", status_code=201, dependencies=[limited("create")])
async def create_project(
    caller: Caller, body: NewProject, request: Request, projects: Projects, credentials: Credentials
) -> ProjectView:
    token = None if body.token is None else Secret(body.token.get_secret_value())
    drafts = checked(token, body.username)  # before anything is made
    project = await projects.create(
        caller, body.name, repository=body.repository, base_branch=body.base_branch, settings=body.settings
    )
    note(request, target=project.id)
    if drafts:
        await credentials.store(project.id, drafts)
    return view(project)


@router.post(
    "/projects/sample",
    name="project.sample",
    status_code=201,
    dependencies=[limited("create")],
    responses={200: {"model": SampleProject, "description": "It was there already."}},
)
async def sample_project(caller: Caller, request: Request, response: Response, samples: Samples) -> SampleProject:
    """The caller's own project to try things with: a small repository that the platform makes, and tasks for it. Again: the same."""
    found = await samples.ensure(caller)
    note(request, target=found.project.id)
    if not found.made:
        response.status_code = 200
    return SampleProject(project=view(found.project), tasks=[SampleTask.model_validate(one) for one in sample.TASKS])


@router.get("/projects/{project_id}", name="project.get")
async def get_project(caller: Caller, project_id: ProjectId, projects: Projects) -> ProjectView:
    return view(await projects.get(caller, project_id))


@router.patch("/projects/{project_id}", name="project.update")
async def update_project(
    caller: Caller, project_id: ProjectId, body: ProjectChange, request: Request, projects: Projects
) -> ProjectView:
    given = {name: getattr(body, name) for name in body.model_fields_set}
    note(request, changed=sorted(given))
    return view(await projects.update(caller, project_id, **given))


@router.delete("/projects/{project_id}", name="project.delete", status_code=204)
async def delete_project(caller: Caller, project_id: ProjectId, projects: Projects) -> None:
    """Its tasks and secrets go with it; its sessions stay their owners'."""
    await projects.delete(caller, project_id)


@router.get("/projects/{project_id}/members", name="project.members")
async def list_members(caller: Caller, project_id: ProjectId, projects: Projects) -> Members:
    """Without the owner."""
    return Members(items=[Member.model_validate(user) for user in await projects.members(caller, project_id)])


@router.put("/projects/{project_id}/members/{user_id}", name="project.add_member", status_code=204)
async def add_member(caller: Caller, project_id: ProjectId, user_id: MemberId, projects: Projects) -> None:
    """A member sees the project and what belongs to it. Again: 204."""
    await projects.add_member(caller, project_id, user_id)


@router.delete("/projects/{project_id}/members/{user_id}", name="project.remove_member", status_code=204)
async def remove_member(caller: Caller, project_id: ProjectId, user_id: MemberId, projects: Projects) -> None:
    """By the owner, or by the member. Again: 204."""
    await projects.remove_member(caller, project_id, user_id)


def view(project: Project) -> ProjectView:
    return ProjectView(
        id=project.id,
        owner_id=project.owner_id,
        name=project.name,
        repository=project.repository,
        base_branch=project.base_branch,
        settings=ProjectSettings.of(project),
        created_at=project.created_at,
        updated_at=project.updated_at,
        archived_at=project.archived_at,
    )
