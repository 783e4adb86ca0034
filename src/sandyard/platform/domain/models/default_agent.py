"""Which agent works where nobody has named one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.platform.db.models import ModelProvider, Project
from sandyard.platform.domain.agents.model import ModelApi
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.agents.profiles.demo import DEMO
from sandyard.platform.domain.models.apis import SPEAKS
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.settings import PlatformSettings


async def find_default_agent(session: AsyncSession, project: Project | None, settings: PlatformSettings) -> str:
    """Return the project's default agent, else the platform's, else the first built-in one with a model that it can use here.
    The demo agent is the last resort: it cannot do real work."""
    if chosen := _named(project, settings):
        return chosen
    return _first_with_model(await _load_kinds(session), project)


async def find_default_agents(
    session: AsyncSession, projects: Iterable[Project], settings: PlatformSettings
) -> dict[str, str]:
    """Return what `find_default_agent` says for each of these projects, by its id."""
    kinds = await _load_kinds(session)
    return {one.id: _named(one, settings) or _first_with_model(kinds, one) for one in projects}


def _named(project: Project | None, settings: PlatformSettings) -> str | None:
    usual = ProjectSettings.of(project).agent.default if project is not None else None
    return usual or settings.default_agent


async def _load_kinds(session: AsyncSession) -> Collection[tuple[str | None, ModelApi]]:
    """All providers' projects (None: everybody's) and kinds."""
    rows = await session.execute(select(ModelProvider.project_id, ModelProvider.kind).distinct())
    return [(project_id, ModelApi(kind)) for project_id, kind in rows]


def _first_with_model(kinds: Collection[tuple[str | None, ModelApi]], project: Project | None) -> str:
    here = (None, project.id if project is not None else None)
    spoken = {api for owner, kind in kinds if owner in here for api in SPEAKS[kind]}
    return next((name for name, one in BUILT_IN.items() if not spoken.isdisjoint(one.apis)), DEMO.name)
