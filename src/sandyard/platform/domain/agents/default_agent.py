"""The agent to use when none is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.platform.db.models import ModelProvider, Project
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.agents.profiles.demo import DEMO
from sandyard.platform.domain.models.apis import SPEAKS
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.settings import PlatformSettings


async def find_default_agent(session: AsyncSession, project: Project | None, settings: PlatformSettings) -> str:
    """Return the project's default agent, or else the platform's, or else the built-in agent for the first provider that was added.

    So adding another provider does not change it. The demo agent is the last resort, because it cannot do real work.
    """
    if chosen := _get_configured_agent(project, settings):
        return chosen
    return _choose_for_first_provider(await _load_provider_kinds(session), project)


async def find_default_agents(
    session: AsyncSession, projects: Iterable[Project], settings: PlatformSettings
) -> dict[str, str]:
    """Return the result of `find_default_agent` for each of these projects, by id."""
    kinds = await _load_provider_kinds(session)
    return {one.id: _get_configured_agent(one, settings) or _choose_for_first_provider(kinds, one) for one in projects}


def _get_configured_agent(project: Project | None, settings: PlatformSettings) -> str | None:
    usual = ProjectSettings.of(project).agent.default if project is not None else None
    return usual or settings.default_agent


async def _load_provider_kinds(session: AsyncSession) -> Sequence[tuple[str | None, ModelApi]]:
    """Return project (None means all users) and kind of all providers, oldest first."""
    rows = await session.execute(
        select(ModelProvider.project_id, ModelProvider.kind)
        .group_by(ModelProvider.project_id, ModelProvider.kind)
        .order_by(func.min(ModelProvider.id))
    )
    return [(project_id, ModelApi(kind)) for project_id, kind in rows]


def _choose_for_first_provider(kinds: Sequence[tuple[str | None, ModelApi]], project: Project | None) -> str:
    here = (None, project.id if project is not None else None)
    for owner, kind in kinds:
        usable = [one for one in BUILT_IN.values() if not set(SPEAKS[kind]).isdisjoint(one.apis)]
        if owner in here and usable:
            return min(usable, key=lambda one: len(one.apis)).name
    return DEMO.name
