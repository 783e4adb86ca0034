"""Projects and their members."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field, StringConstraints

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.credential_input import CredentialChanges
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses, limit_remote_requests
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.refs import Branch
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.db.models import Project
from sandyard.platform.domain.agents import catalogue
from sandyard.platform.domain.forge import connection_test
from sandyard.platform.domain.forge.addresses import explain_missing_pull_requests
from sandyard.platform.domain.projects import credentials as credential_service
from sandyard.platform.domain.projects import sample, service
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.service import SandboxSettings, check_sandbox_settings
from sandyard.platform.settings import PlatformSettings

router = api_router("projects")
Projects = Annotated[service.Projects, inject("projects")]
Agents = Annotated[catalogue.AgentCatalogue, inject("agents")]
Samples = Annotated[sample.Samples, inject("samples")]
ConnectionTests = Annotated[connection_test.ConnectionTests, inject("connection_tests")]
Engine = Annotated[SandboxEngine, inject("engine")]
Platform = Annotated[PlatformSettings, inject("settings")]
Credentials = Annotated[credential_service.Credentials, inject("credentials")]
ProjectId = Annotated[str, id_in_path("project", "prj_0mh3k7a1x2abcdefghij")]
MemberId = Annotated[str, id_in_path("user", "usr_0mh3k7a1x2abcdefghij")]
ProjectName = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
Repository = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1000,
        description="An https or ssh URL without credentials. Only administrators may use a path on the server.",
        examples=["https://example.org/website.git"],
    ),
]
BaseBranch = Annotated[Branch, Field(description="Null means the remote's default branch.")]
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
        connectionError=None,
        forgeNote=None,
        defaultAgent="opencode",
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
    connection_error: str | None = Field(
        description="Why the last connection to the repository failed. Null if it succeeded or was not tried yet."
    )
    forge_note: str | None = Field(
        description="Why branches of this repository get no pull requests, and what to set. Null if they do, or if none are expected."
    )
    default_agent: str = Field(
        description="The agent for tasks that name none: `settings.agent.default`, or else the first agent that has a model."
    )


class NewProject(CredentialChanges):
    model_config = example(
        name="website", repository="https://example.org/website.git", baseBranch="main", settings=_SETTINGS
    )

    name: ProjectName
    repository: Repository | None = None
    base_branch: BaseBranch | None = None
    settings: ProjectSettings = Field(default_factory=ProjectSettings)
    test: bool = Field(
        default=False,
        description="Test the connection first. If it fails, nothing is stored (`connection_test_failed`, with `findings`).",
    )


class ProjectChange(Input):
    """Fields left out are not changed. `settings` is replaced as a whole."""

    model_config = example(name="web site", settings=_SETTINGS)

    name: ProjectName | None = None
    repository: Repository | None = None
    base_branch: BaseBranch | None = None
    settings: ProjectSettings | None = None
    archived: bool | None = None


class SampleTask(Model):
    model_config = example(title="Count words, not gaps", description="run: python3 -m unittest")

    title: str
    description: str = Field(description="For people, with instructions that the demo agent follows.")


class SampleProject(Model):
    project: ProjectView
    tasks: list[SampleTask] = Field(description="Suggested first tasks: `title` and `description` for POST /tasks.")


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
    agents: Agents,
    archived: Annotated[bool, Query(description="List archived projects instead.")] = False,
) -> Page[ProjectView]:
    """List projects that you own or are a member of. Administrators see all projects."""
    found = await projects.list(caller, page, archived=archived)
    default = await agents.find_default_agents(found.items)
    return Page[ProjectView].from_listing(found, lambda project: _to_view(project, default[project.id]))


@router.post(
    "/projects", name="project.create", status_code=201, dependencies=[limit_rate("create"), limit_remote_requests()]
)
async def create_project(
    caller: Caller,
    body: NewProject,
    request: Request,
    projects: Projects,
    credentials: Credentials,
    tests: ConnectionTests,
    agents: Agents,
    engine: Engine,
    platform: Platform,
) -> ProjectView:
    drafts = await asyncio.to_thread(body.make_drafts)  # validate before anything is created
    project = await projects.draft(
        caller, body.name, repository=body.repository, base_branch=body.base_branch, settings=body.settings
    )
    if body.test:
        await tests.check_draft(project, drafts)
    await check_sandbox_settings(
        engine, _get_sandbox_settings(ProjectSettings.from_project(project)), platform.default_template
    )
    project = await projects.store(project)
    add_audit_detail(request, target=project.id)
    if drafts:
        await credentials.store(project.id, drafts)
    return await make_view(agents, project)


@router.post(
    "/projects/sample",
    name="project.sample",
    status_code=201,
    dependencies=[limit_rate("create")],
    responses={200: {"model": SampleProject, "description": "The sample project already exists."}},
)
async def sample_project(
    caller: Caller, request: Request, response: Response, samples: Samples, agents: Agents
) -> SampleProject:
    """Create a sample project for the caller: a small repository and tasks for it. Idempotent."""
    found = await samples.ensure(caller)
    add_audit_detail(request, target=found.project.id)
    if not found.created:
        response.status_code = 200
    project = await make_view(agents, found.project)
    return SampleProject(project=project, tasks=[SampleTask.model_validate(task) for task in sample.TASKS])


@router.get("/projects/{project_id}", name="project.get", dependencies=[limit_large_responses()])
async def get_project(caller: Caller, project_id: ProjectId, projects: Projects, agents: Agents) -> ProjectView:
    return await make_view(agents, await projects.get(caller, project_id))


@router.patch(
    "/projects/{project_id}", name="project.update", dependencies=[limit_rate("execute"), limit_remote_requests()]
)
async def update_project(
    caller: Caller,
    project_id: ProjectId,
    body: ProjectChange,
    request: Request,
    projects: Projects,
    tests: ConnectionTests,
    agents: Agents,
    engine: Engine,
    platform: Platform,
    test: Annotated[
        bool,
        Query(
            description="Test the forge's API with the changed project first. If it fails, nothing is stored (`connection_test_failed`, "
            "with `findings`)."
        ),
    ] = False,
) -> ProjectView:
    given = {name: getattr(body, name) for name in body.model_fields_set}
    add_audit_detail(request, changed=sorted(given))
    if test:
        tested = {name: given[name] for name in ("repository", "base_branch", "settings") if name in given}
        await tests.check_api(await projects.draft_update(caller, project_id, **tested))
    if body.settings is not None:
        before = ProjectSettings.from_project(await projects.get_changeable(caller, project_id))
        settings = _get_sandbox_settings(body.settings)
        if settings != _get_sandbox_settings(before):
            await check_sandbox_settings(engine, settings, platform.default_template)
    return await make_view(agents, await projects.update(caller, project_id, **given))


def _get_sandbox_settings(settings: ProjectSettings) -> SandboxSettings:
    return SandboxSettings(settings.template, settings.isolation, settings.containers)


@router.delete("/projects/{project_id}", name="project.delete", status_code=204)
async def delete_project(caller: Caller, project_id: ProjectId, projects: Projects) -> None:
    """Delete a project with its tasks, schedules, secrets and credentials. Its sessions and the repository are kept."""
    await projects.delete(caller, project_id)


@router.get("/projects/{project_id}/members", name="project.members", dependencies=[limit_large_responses()])
async def list_members(caller: Caller, project_id: ProjectId, projects: Projects) -> Members:
    """List the project's members, without the owner."""
    return Members(items=[Member.model_validate(user) for user in await projects.list_members(caller, project_id)])


@router.put("/projects/{project_id}/members/{user_id}", name="project.add_member", status_code=204)
async def add_member(caller: Caller, project_id: ProjectId, user_id: MemberId, projects: Projects) -> None:
    """Add a member, who can then see the project and everything in it. Idempotent."""
    await projects.add_member(caller, project_id, user_id)


@router.delete("/projects/{project_id}/members/{user_id}", name="project.remove_member", status_code=204)
async def remove_member(caller: Caller, project_id: ProjectId, user_id: MemberId, projects: Projects) -> None:
    """Remove a member. Allowed for the owner and for the member. Idempotent."""
    await projects.remove_member(caller, project_id, user_id)


async def make_view(agents: Agents, project: Project) -> ProjectView:
    return _to_view(project, await agents.find_default_agent(project))


def _to_view(project: Project, default_agent: str) -> ProjectView:
    return ProjectView(
        id=project.id,
        owner_id=project.owner_id,
        name=project.name,
        repository=project.repository,
        base_branch=project.base_branch,
        settings=ProjectSettings.from_project(project),
        created_at=project.created_at,
        updated_at=project.updated_at,
        archived_at=project.archived_at,
        connection_error=project.connection_error,
        forge_note=explain_missing_pull_requests(project),
        default_agent=default_agent,
    )
