"""Models for agents: selection, the tunnel out of the sandbox, and budgets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from sandyard.kit.clock import Clock
from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import ModelProvider, Sandbox, Session, Turn
from sandyard.platform.domain.models.apis import SUPPORTED_APIS
from sandyard.platform.domain.models.budgets import Budgets
from sandyard.platform.domain.models.capability import Capabilities
from sandyard.platform.domain.models.faults import Cause, Fault, ProviderTestFailedError, make_label
from sandyard.platform.domain.models.gateway import Gateway, RequestOrigin
from sandyard.platform.domain.models.ledger import Ledger, require_visible, select_calls, select_visible_calls
from sandyard.platform.domain.models.model import (
    DailyUsage,
    ModelApi,
    ModelEndpoint,
    ModelUnknownError,
    ModelUser,
    NoModelError,
    ProviderTestResult,
    Readiness,
    UsageTotals,
)
from sandyard.platform.domain.models.presets import list_presets
from sandyard.platform.domain.models.provider_check import check_provider
from sandyard.platform.domain.models.providers import Providers
from sandyard.platform.domain.models.tunnel import RequestMemory, ResponseWriter, TunnelRequest
from sandyard.platform.domain.models.tunnel_keeper import MAX_VIOLATIONS, TunnelKeeper
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

MAX_REQUEST_BYTES = 256 << 20
"""Maximum bytes of requests from all sandboxes in the platform's memory."""

OverBudgetHook = Callable[[str, str], Awaitable[None]]
RefusalHook = Callable[[str, Fault], Awaitable[None]]


class TunnelGateway(Protocol):
    """Another gateway reached through the tunnel."""

    def handles(self, target: str) -> bool: ...
    async def serve(self, origin: RequestOrigin, request: TunnelRequest, writer: ResponseWriter) -> None: ...
    async def close(self) -> None: ...


class Models:
    """Models for agents.

    `over_budget_hooks` are called with a turn and a sentence if that turn's task or project has used up its budget, possibly several times.
    `refusal_hooks` are called with a turn whose provider would reject all its requests.
    """

    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        projects: Projects,
        vault: Vault,
        *,
        settings: PlatformSettings,
        clock: Clock,
        destinations: Destinations,
        mcp: TunnelGateway | None = None,
    ) -> None:
        """`destinations`: where providers may be whose address was not set by an administrator.
        `mcp`: serves requests for MCP servers; it is closed with the models."""
        self._database = database
        self._lifecycle = lifecycle
        self._settings = settings
        self.providers = Providers(database, projects, vault, clock)
        self.capabilities = Capabilities(vault)
        self._ledger = Ledger(database, clock)
        self._budgets = Budgets(database, self._ledger, clock, lambda quotas: quotas.with_defaults(settings))
        self.gateway = Gateway(
            database,
            self.providers,
            self.capabilities,
            self._budgets,
            self._ledger,
            destinations=destinations,
            timeout_s=settings.model_timeout_s,
            on_over_budget=self._report_over_budget,
            on_outcome=self._record_outcome,
            on_refused=self._report_failure,
        )
        self._mcp = mcp
        self._memory = RequestMemory(MAX_REQUEST_BYTES)
        self.keepers: dict[str, TunnelKeeper] = {}
        self._turns: dict[str, list[str]] = {}  # by sandbox: turns in progress, the newest last
        self._faults: dict[str, Fault] = {}  # by turn
        self._answered: dict[str, float] = {}  # by turn: when one of its requests last succeeded
        self.over_budget_hooks: list[OverBudgetHook] = []
        self.refusal_hooks: list[RefusalHook] = []

    async def close(self) -> None:
        """Close. Agents continue; their requests wait in their sandboxes."""
        await asyncio.gather(*(self.detach(sandbox_id) for sandbox_id in list(self.keepers)))
        await self.gateway.close()
        if self._mcp is not None:
            await self._mcp.close()

    # model selection ---------------------------------------------------------------------------------------------------

    async def open_endpoint(
        self, session: Session, sandbox: Sandbox, profile: ModelUser, model: str | None
    ) -> ModelEndpoint | None:
        """Return the model endpoint for an agent; None if it needs no model. Opens the tunnel like `attach`.

        Raises NoModelError, which says what to configure. `model` may include its provider: `NAME/model`.
        """
        if not profile.apis:
            return None
        provider, api, chosen = choose_model(await self.providers.list_usable(session.project_id), profile, model)
        gateway, capability = await self.open_gateway(session, sandbox)
        return ModelEndpoint(api, f"{gateway}/{provider.id}", capability, chosen)

    async def open_gateway(self, session: Session, sandbox: Sandbox) -> tuple[str, Secret]:
        """Return the gateway's address inside the sandbox, and its capability. Opens the tunnel like `attach`."""
        await self.attach(session, sandbox)
        port = await self.keepers[sandbox.id].wait_until_up()
        return f"http://127.0.0.1:{port}", await asyncio.to_thread(self.capabilities.derive, sandbox.id)

    async def require_model(self, project_id: str | None, profile: ModelUser, model: str | None) -> None:
        """Raise NoModelError if `open_endpoint` would have no model."""
        if profile.apis:
            choose_model(await self.providers.list_usable(project_id), profile, model)

    async def list_readiness(self, caller: Principal, profiles: Iterable[ModelUser]) -> dict[str, Readiness]:
        """Return readiness by agent name, based on the providers the caller may see."""
        known = await self.providers.list_scopes(caller)
        found = {}
        for profile in profiles:
            matching = {project for project, kind in known if any(api in SUPPORTED_APIS[kind] for api in profile.apis)}
            projects = sorted(project for project in matching if project is not None)
            found[profile.name] = Readiness(not profile.apis or None in matching, tuple(projects))
        return found

    # the tunnel --------------------------------------------------------------------------------------------------------

    async def attach(self, session: Session, sandbox: Sandbox) -> None:
        """Serve agents in the sandbox until `detach`, across interruptions of any kind. Idempotent.

        Raises the reason if that fails, and keeps nothing: NoPythonError, SandboxNotRunningError (the sandbox is never resumed), TunnelError
        and others.
        """
        keeper = self.keepers.get(sandbox.id)
        if keeper is None or keeper.is_over:
            origin = RequestOrigin(sandbox.id, session.id, functools.partial(self._get_turn_id, sandbox.id))
            serve = functools.partial(self._serve, origin)
            on_give_up = functools.partial(self._report_tunnel_failure, sandbox.id)
            keeper = TunnelKeeper(
                self._lifecycle, sandbox.id, sandbox.owner_id, serve, self._memory, on_give_up=on_give_up
            )
            self.keepers[sandbox.id] = keeper
            keeper.start()
        try:
            await keeper.wait_until_up()
        except SandyardError:
            if self.keepers.get(sandbox.id) is keeper:
                await self.detach(sandbox.id)
            raise

    async def _serve(self, origin: RequestOrigin, request: TunnelRequest, writer: ResponseWriter) -> None:
        gateway = self._mcp if self._mcp is not None and self._mcp.handles(request.target) else self.gateway
        await gateway.serve(origin, request, writer)

    async def detach(self, sandbox_id: str) -> None:
        """Stop serving. Later requests of agents wait until the next `attach`. Idempotent."""
        keeper = self.keepers.pop(sandbox_id, None)
        if keeper is not None:
            await keeper.stop()

    async def _report_tunnel_failure(self, sandbox_id: str, error: SandyardError) -> None:
        """Fail the sandbox's turns, because their requests would wait until the tunnel is tried again."""
        message = (
            f"The connection between the sandbox and the model was given up after {MAX_VIOLATIONS} errors. {error.message}"
            " A program in the sandbox may interfere with it."
        )
        for turn_id in list(self._turns.get(sandbox_id, ())):
            await self._report_failure(turn_id, Fault(Cause.TUNNEL, message, final=True))

    async def after_resume(self, row: Sandbox) -> None:
        """Connect the tunnel again without waiting for its next attempt."""
        self._recheck_tunnel(row)

    async def after_end(self, row: Sandbox) -> None:
        """Let the tunnel find out that its sandbox has ended."""
        self._recheck_tunnel(row)

    def _recheck_tunnel(self, row: Sandbox) -> None:
        if (keeper := self.keepers.get(row.id)) is not None:
            keeper.recheck()

    # usage ---------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def count_for_turn(self, sandbox_id: str, turn: Turn) -> Iterator[None]:
        """Count requests of agents in this sandbox for this turn. Tries a tunnel again that was given up."""
        if (keeper := self.keepers.get(sandbox_id)) is not None:
            keeper.retry()
        turns = self._turns.setdefault(sandbox_id, [])
        turns.append(turn.id)
        try:
            yield
        finally:
            turns.remove(turn.id)
            self._faults.pop(turn.id, None)
            self._answered.pop(turn.id, None)
            if not turns and self._turns.get(sandbox_id) is turns:
                del self._turns[sandbox_id]

    def _get_turn_id(self, sandbox_id: str) -> str | None:
        turns = self._turns.get(sandbox_id)
        return turns[-1] if turns else None

    async def check_budget(self, session: Session) -> None:
        """Raise OverBudgetError if the session's task or project has used up its budget."""
        await self._budgets.check(session)

    async def get_usage(
        self,
        *,
        turn_id: str | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        project_id: str | None = None,
        since: datetime | None = None,
    ) -> UsageTotals:
        """Return the totals of all matching requests."""
        conditions = select_calls(
            turn_id=turn_id, session_id=session_id, task_id=task_id, project_id=project_id, since=since
        )
        return await self._ledger.get_totals(*conditions)

    async def make_report(
        self,
        caller: Principal,
        *,
        session_id: str | None = None,
        task_id: str | None = None,
        project_id: str | None = None,
        since: datetime | None = None,
    ) -> tuple[UsageTotals, list[tuple[str | None, UsageTotals]]]:
        """Return the totals that the caller may see, overall and by model. Raises NotFoundError for what they may not see."""
        async with self._database.reading() as reading:
            await require_visible(reading, caller, session_id=session_id, task_id=task_id, project_id=project_id)
        conditions = select_calls(session_id=session_id, task_id=task_id, project_id=project_id, since=since)
        conditions += select_visible_calls(caller)
        return await self._ledger.get_totals(*conditions), await self._ledger.list_by_model(*conditions)

    async def list_days(
        self, caller: Principal, *, project_id: str | None = None, since: datetime | None = None
    ) -> tuple[list[DailyUsage], bool]:
        """Return the totals by day, project and model, and whether they are truncated. Raises NotFoundError like `make_report`."""
        async with self._database.reading() as reading:
            await require_visible(reading, caller, session_id=None, task_id=None, project_id=project_id)
        conditions = select_calls(project_id=project_id, since=since) + select_visible_calls(caller)
        return await self._ledger.list_by_day(*conditions)

    async def test_provider(self, caller: Principal, provider_id: str) -> ProviderTestResult:
        """Send the provider a tiny request with its real key. Requires permission to change it."""
        row = await self.providers.get_changeable(caller, provider_id)
        return await check_provider(self.gateway.get_client(row), row, await self.providers.reveal(row))

    async def check_provider(self, row: ModelProvider, key: Secret | None) -> Sequence[str]:
        """Return the provider's models, if requested. Raises ProviderTestFailedError if it does not work."""
        result = await check_provider(self.gateway.get_client(row), row, key)
        if not result.ok:
            raise ProviderTestFailedError(Cause(result.cause or Cause.ERROR), result.detail)
        if result.model is None and not result.models and row.kind == ModelApi.OPENAI_CHAT:
            label = make_label(row.name, row.base_url)
            raise ProviderTestFailedError(
                Cause.MODEL, f"{label} responds, but has no models. Load a model there, or enter a model name."
            )
        return result.models

    def get_fault(self, turn_id: str) -> Fault | None:
        """Return why the newest request of a turn in progress failed; None if it did not."""
        return self._faults.get(turn_id)

    def _record_outcome(self, turn_id: str, fault: Fault | None, started: float) -> None:
        if not any(turn_id in turns for turns in self._turns.values()):
            return
        now = time.monotonic()
        if fault is None:
            self._faults.pop(turn_id, None)
            self._answered[turn_id] = now
        else:
            alone = started > self._answered.get(turn_id, 0.0)
            self._faults[turn_id] = replace(fault, at=now, alone=alone)

    async def _report_failure(self, turn_id: str, fault: Fault) -> None:
        log.info("turn_failed_by_provider", turn=turn_id, code=fault.code)
        for hook in self.refusal_hooks:
            await hook(turn_id, fault)

    async def _report_over_budget(self, turn_id: str, message: str) -> None:
        log.info("turn_over_budget", turn=turn_id, reason=message)
        for hook in self.over_budget_hooks:
            await hook(turn_id, message)


def choose_model(
    providers: Sequence[ModelProvider], profile: ModelUser, model: str | None
) -> tuple[ModelProvider, ModelApi, str | None]:
    """Return the first matching provider, by the agent's preferred API, then a project's own before those for all users.

    A provider without a list of models accepts any model.
    """
    matching = [
        (provider, api)
        for api in profile.apis
        for provider in providers
        if api in SUPPORTED_APIS[ModelApi(provider.kind)]
    ]
    if not matching:
        presets = [preset for preset in list_presets() if preset.serves(profile)]
        titles = [preset.title for preset in presets]
        if len(presets) == 1:
            message = f"{profile.title} needs a model, but no {titles[0]} API key is set up."
            raise NoModelError(message, preset=presets[0].name)
        names = f": {', '.join(titles[:-1])} or {titles[-1]}" if titles else ""
        raise NoModelError(f"{profile.title} needs a model, but no provider is set up that it can use{names}.")
    if model is None:
        provider, api = matching[0]
        return provider, api, next(iter([*provider.models, *profile.models]), None)
    for provider, api in matching:
        if model in provider.models:
            return provider, api, model
    name, slash, rest = model.partition("/")
    for provider, api in matching:
        if slash and provider.name == name:
            return provider, api, rest
    for provider, api in matching:
        if not provider.models:
            return provider, api, model
    known = sorted({known for provider, _ in matching for known in provider.models})
    raise ModelUnknownError(
        f"No provider that {profile.title} can use has the model {model[:200]}. Available: {', '.join(known[:50])}."
    )
