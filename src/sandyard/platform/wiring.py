"""Wiring of the platform: create every service with its dependencies, start them in order, and close them in reverse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta

from sandyard.kit.clock import SystemClock
from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import get_logger
from sandyard.kit.postgres import identify
from sandyard.kit.vault import Vault
from sandyard.platform.db import migrate
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Setting
from sandyard.platform.db.ownership import Ownership
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.agents.catalogue import AgentCatalogue
from sandyard.platform.domain.agents.installation import ensure_installed
from sandyard.platform.domain.agents.questions.service import Asks
from sandyard.platform.domain.agents.runner.turns import AgentTurns
from sandyard.platform.domain.agents.trials import Trials
from sandyard.platform.domain.audit.service import Audit
from sandyard.platform.domain.events.feed import Feed
from sandyard.platform.domain.forge.access import ForgeAccess
from sandyard.platform.domain.forge.connection_test import ConnectionTests
from sandyard.platform.domain.forge.pollers import IssuePoller, PullRequestPoller
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.forge.webhooks import Webhooks
from sandyard.platform.domain.git.context import GitContext
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.instance.disk import DiskKeeper
from sandyard.platform.domain.instance.quotas import QuotaService
from sandyard.platform.domain.instance.status import StatusReader
from sandyard.platform.domain.mcp_servers.clients import McpClients
from sandyard.platform.domain.mcp_servers.gateway import McpGateway
from sandyard.platform.domain.mcp_servers.service import McpServers
from sandyard.platform.domain.models.capability import Capabilities
from sandyard.platform.domain.models.ledger import Ledger
from sandyard.platform.domain.models.service import Models
from sandyard.platform.domain.preparations.service import Preparations
from sandyard.platform.domain.previews.service import Previews
from sandyard.platform.domain.projects.credentials import Credentials
from sandyard.platform.domain.projects.egress import parse_operator_default
from sandyard.platform.domain.projects.sample import Samples
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.remote.service import Remotes
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.mirror import Mirrors
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.command_output import OutputFiles
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.e2b import EngineConfig, SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.maintenance import SandboxMaintenance
from sandyard.platform.domain.sandboxes.service import Sandboxes
from sandyard.platform.domain.sandboxes.terminals import Terminals
from sandyard.platform.domain.secrets.encryption_keys import EncryptionKeys
from sandyard.platform.domain.secrets.service import Secrets
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.sessions.service import Sessions
from sandyard.platform.domain.tasks.attempts import Attempts
from sandyard.platform.domain.tasks.board import Tasks
from sandyard.platform.domain.tasks.durable import Durable
from sandyard.platform.domain.tasks.issue_tasks import IssueTasks
from sandyard.platform.domain.tasks.reviews import Reviews
from sandyard.platform.domain.tasks.rounds import Rounds
from sandyard.platform.domain.tasks.schedules import Schedules
from sandyard.platform.domain.tasks.steps import Steps
from sandyard.platform.domain.users.service import Users
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

TIDY_SECONDS = 600


@contextlib.asynccontextmanager
async def open_services(
    settings: PlatformSettings, standing_by: Callable[[str], None] = lambda reason: None
) -> AsyncIterator[Services]:
    """Open all services behind the API. Commands, agents and sandboxes continue when they are closed.

    While another platform owns the database, waits and calls `standing_by` with the reason. The data directory must be
    locked.
    """
    async with contextlib.AsyncExitStack() as stack:
        database = Database(settings.database)
        await database.open()
        stack.push_async_callback(database.close)
        ownership = None
        if not database.is_sqlite:  # SQLite is in the data directory, which is locked
            ownership = Ownership(database, identify(settings.data_dir))
            stack.push_async_callback(ownership.release)
            await ownership.acquire(standing_by)
        await migrate.upgrade(database)
        if ownership is not None:
            await retry_while_database_unavailable(ownership.sign, "ownership")
        instance = await _get_instance(database)
        services = _create_services(settings, database, ownership, instance, stack)
        await _start_services(services, instance, stack)
        yield services


def _create_services(
    settings: PlatformSettings,
    database: Database,
    ownership: Ownership | None,
    instance: str,
    stack: contextlib.AsyncExitStack,
) -> Services:
    clock = SystemClock()
    engine = SandboxEngine(_make_engine_config(settings), clock)
    stack.push_async_callback(engine.close)
    vault = Vault(settings.data_dir / "secret.key")
    destinations = Destinations(settings.private_hosts)
    projects = Projects(database, clock, destinations)
    agents = AgentCatalogue(database, settings)
    lifecycle = Lifecycle(
        database,
        engine,
        vault,
        Activity(clock),
        instance=instance,
        idle_margin_s=settings.idle_margin_s,
        allowed=parse_operator_default(settings.network, settings.network_allow.split(",")),
        destinations=destinations,
        resolve_quotas=lambda quotas: quotas.with_defaults(settings),
    )
    stack.push_async_callback(lifecycle.close)
    files = OutputFiles(settings.data_dir / "output")
    feed = Feed(database, backlog=settings.reader_backlog, clock=clock)
    commands = Commands(
        database,
        lifecycle,
        files,
        max_timeout_s=settings.max_command_timeout_s,
        output_kept=settings.output_kept,
    )
    connections = McpClients(destinations, timeout_s=settings.model_timeout_s)
    mcp = McpGateway(McpServers(database, projects, vault, clock, connections), Capabilities(vault))
    models = Models(
        database, lifecycle, projects, vault, settings=settings, clock=clock, destinations=destinations, mcp=mcp
    )
    stack.push_async_callback(models.close)
    credentials = Credentials(database, projects, vault, clock)
    host_git = Git(
        settings.git_dir,
        timeout_s=settings.git_timeout_s,
        destinations=destinations,
        local=settings.local_git,
        samples=settings.samples_dir,
    )
    mirrors = Mirrors(host_git, settings, get_owner_id=projects.get_owner_id)
    access = ForgeAccess(credentials, projects, mirrors, clock, destinations)
    stack.push_async_callback(access.close)
    git = GitService(GitContext(database, lifecycle, mirrors, access.get_credential, settings), projects)
    stack.push_async_callback(git.operations.close)
    preparations = Preparations(
        database,
        lifecycle,
        commands,
        projects=projects,
        git=git,
        settings=settings,
        install=ensure_installed,
    )
    stack.push_async_callback(preparations.close)
    pull_requests = PullRequests(database, git, access, mirrors, projects, settings, clock)
    turns = AgentTurns(
        database,
        lifecycle,
        files=files,
        git=git,
        agents=agents,
        models=models,
        settings=settings,
        clock=clock,
        install=ensure_installed,
    )
    stack.push_async_callback(turns.close)

    async def find_agent_snapshot(owner_id: str, agent: str, template: str) -> str:
        try:
            return await preparations.agent_snapshots.find(owner_id, await agents.profile(owner_id, agent), template)
        except InvalidInputError:  # an agent that no longer exists; the session's first turn reports it
            return template

    sessions = Sessions(
        database,
        lifecycle,
        commands,
        projects=projects,
        git=git,
        settings=settings,
        check_agent=agents.profile,
        find_agent_snapshot=find_agent_snapshot,
        before_delete=(turns.purge,),
    )
    trials = Trials(database, feed, agents, sessions, turns, models=models)
    stack.push_async_callback(trials.close)
    attempts = Attempts(database, projects, lifecycle, turns, settings, clock)
    stack.push_async_callback(attempts.close)
    tasks = Tasks(database, projects, attempts, agents, clock)
    stack.push_async_callback(tasks.close)
    schedules = Schedules(database, projects, tasks, settings, clock)
    stack.push_async_callback(schedules.close)
    webhooks = Webhooks(
        database, credentials, pull_requests, clock, on_push=git.refresh, on_issue=IssueTasks(tasks).create_task
    )
    stack.push_async_callback(webhooks.close)
    users = Users(settings, database, clock)
    previews = Previews(database, lifecycle, tickets=users, vault=vault, settings=settings, clock=clock)
    stack.push_async_callback(previews.close)
    services = Services(
        settings=settings,
        clock=clock,
        database=database,
        ownership=ownership,
        events=feed,
        users=users,
        audit=Audit(database, clock),
        status=StatusReader(database, engine, settings, clock),
        disk=DiskKeeper(database, engine, settings, files, preparations),
        quotas=QuotaService(database, projects, Ledger(database, clock), settings, clock),
        secrets=Secrets(database, projects, vault, clock),
        encryption_keys=EncryptionKeys(database, vault, clock),
        projects=projects,
        samples=Samples(database, projects, host_git, settings.samples_dir),
        agents=agents,
        trials=trials,
        engine=engine,
        lifecycle=lifecycle,
        maintenance=SandboxMaintenance(database, lifecycle, settings, clock, stop_agent=turns.stop_agent),
        sandboxes=Sandboxes(database, lifecycle, projects, settings),
        commands=commands,
        preparations=preparations,
        previews=previews,
        sessions=sessions,
        attempts=attempts,
        tasks=tasks,
        schedules=schedules,
        turns=turns,
        asks=Asks(database, turns),
        terminals=Terminals(database, lifecycle),
        remotes=Remotes(database, lifecycle, sessions),
        credentials=credentials,
        models=models,
        mcp_servers=mcp.servers,
        access=access,
        connection_tests=ConnectionTests(access, credentials, projects, mirrors),
        git=git,
        pull_requests=pull_requests,
        webhooks=webhooks,
    )
    _register_hooks(services, mcp)
    return services


def _register_hooks(services: Services, mcp: McpGateway) -> None:
    """Register what services do when another one reports a change. Hooks run in this order."""
    commands, git, models, turns = services.commands, services.git, services.models, services.turns
    preparations, sessions, lifecycle = services.preparations, services.sessions, services.lifecycle
    lifecycle.before_pause += [commands.before_pause, git.before_pause, turns.before_pause, sessions.before_pause]
    lifecycle.before_destroy += [git.before_destroy]
    lifecycle.after_resume += [commands.after_resume, models.after_resume, turns.after_resume]
    lifecycle.after_fork += [turns.after_fork]
    lifecycle.after_end += [
        commands.after_end,
        models.after_end,
        preparations.agent_snapshots.after_end,
        preparations.after_end,
        turns.after_end,
        sessions.after_end,
        services.terminals.after_end,
    ]
    services.projects.on_change.append(lambda project_id: lifecycle.tasks.spawn(lifecycle.apply_network(project_id)))
    models.over_budget_hooks.append(turns.stop_over_budget)
    models.refusal_hooks.append(turns.stop_failed)
    mcp.failure_hooks.append(turns.add_notice)


async def _start_services(services: Services, instance: str, stack: contextlib.AsyncExitStack) -> None:
    """Resume what an earlier process has left, and start the background services."""
    stack.push_async_callback(services.users.close)
    stack.push_async_callback(services.audit.close)
    await services.events.open()
    stack.push_async_callback(services.events.close)
    await services.commands.recover()
    await services.git.recover()
    await services.preparations.recover()
    await services.turns.recover()
    await services.trials.recover()
    steps = Steps(
        services.database,
        services.sessions,
        services.lifecycle,
        services.commands,
        services.turns,
        services.agents,
        services.models,
        services.preparations,
        services.git,
        services.pull_requests,
    )
    durable = Durable(
        services.settings.durable_database,
        instance,
        Rounds(services.database, services.attempts, services.tasks, steps).run_round,
        services.attempts.find_traceparent,
    )
    stack.push_async_callback(durable.close)
    services.attempts.start(durable)
    await services.tasks.recover()
    reviews = Reviews(services.database, services.events, services.attempts, services.tasks)
    reviews.start()
    stack.push_async_callback(reviews.close)
    services.schedules.start()
    if services.engine.configured:
        services.maintenance.start()
    follower = PullRequestPoller(
        services.database, services.pull_requests, services.access, services.settings, services.clock
    )
    follower.start()
    stack.push_async_callback(follower.close)
    issues = IssuePoller(
        services.database,
        services.access,
        services.settings,
        services.clock,
        on_issue=IssueTasks(services.tasks).create_task,
    )
    issues.start()
    stack.push_async_callback(issues.close)
    lock = asyncio.Lock()

    async def tidy() -> None:
        async with lock:
            await _tidy(services, durable)

    services.disk.tidy = tidy
    services.lifecycle.tasks.spawn(_tidy_regularly(services, tidy))


async def _tidy(services: Services, durable: Durable) -> None:
    """Delete what is too old to be useful."""
    settings = services.settings
    kept = timedelta(days=settings.events_kept_days)
    await _tidy_parts(
        {
            "users": services.users.sweep,
            "encryption_keys": services.encryption_keys.tidy,
            "events": lambda: services.events.trim(kept),
            "commands": lambda: services.commands.trim(kept),
            "turns": lambda: services.turns.tidy(kept),
            "workflows": lambda: durable.tidy(kept),
            "git": lambda: services.git.tidy(timedelta(days=settings.git_operations_kept_days)),
            "preparations": lambda: services.preparations.tidy(timedelta(days=settings.preparations_kept_days)),
        }
    )


async def _tidy_parts(parts: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
    """Tidy one part after another. Failures are only logged, so that one part does not keep others from being tidied."""
    for name, tidy in parts.items():
        try:
            await tidy()
        except SandyardError as error:
            log.warning("tidying_failed", part=name, reason=error.message)
        except Exception as error:
            log.error("tidying_crashed", part=name, exc=error)  # noqa: TRY400


async def _tidy_regularly(services: Services, tidy: Callable[[], Awaitable[None]]) -> None:
    while True:
        await tidy()
        await services.clock.sleep(TIDY_SECONDS)


async def _get_instance(database: Database) -> str:
    """Return the name of this installation, which identifies its sandboxes on an engine that others may use too."""
    async with database.transaction() as tx:
        known = await tx.session.get(Setting, "instance")
        if known is None:
            known = Setting(name="instance", value=make_random_id("in-", 16))
            tx.add(known)
        return known.value


def _make_engine_config(settings: PlatformSettings) -> EngineConfig:
    return EngineConfig(
        api_key=settings.e2b_api_key,
        api_url=settings.e2b_api_url,
        sandbox_url=settings.e2b_sandbox_url,
        domain=settings.e2b_domain,
        create_timeout_s=settings.create_timeout_s,
    )
