"""Models for agents: which one an agent gets, the way to it out of the sandbox, and what it may spend there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime

from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import ModelProvider, Sandbox, Session, Turn
from sandyard.platform.domain.agents.model import ModelApi, ModelEndpoint, Profile
from sandyard.platform.domain.models.apis import SPEAKS
from sandyard.platform.domain.models.budgets import Budgets
from sandyard.platform.domain.models.capability import Capabilities
from sandyard.platform.domain.models.gateway import Gateway, Place
from sandyard.platform.domain.models.keeping import Keeper
from sandyard.platform.domain.models.ledger import Ledger, calls_of
from sandyard.platform.domain.models.model import DaySpent, NoModelError, Spent, Verdict
from sandyard.platform.domain.models.providers import Providers
from sandyard.platform.domain.models.trying import tried
from sandyard.platform.domain.models.tunnel import Room
from sandyard.platform.domain.models.visibility import calls_visible_to, require_visible
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

REQUESTS_HELD = 256 << 20
"""Bytes of requests that all sandboxes together may have in the platform's memory."""

OverBudget = Callable[[str, str], Awaitable[None]]


class Models:
    """`over_budget` is called with a turn and a sentence when that turn's task or project may spend no more; it may be called again for
    the same turn."""

    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        projects: Projects,
        vault: Vault,
        *,
        settings: PlatformSettings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self.providers = Providers(database, projects, vault, clock)
        self._capabilities = Capabilities(vault)
        self._ledger = Ledger(database, clock)
        self._budgets = Budgets(database, self._ledger, clock)
        self._gateway = Gateway(
            database,
            self.providers,
            self._capabilities,
            self._budgets,
            self._ledger,
            timeout_s=settings.model_timeout_s,
            over_budget=self._tell,
        )
        self._room = Room(REQUESTS_HELD)
        self._keepers: dict[str, Keeper] = {}
        self._turns: dict[str, list[str]] = {}  # by sandbox: those under way, the newest last
        self.over_budget: list[OverBudget] = []
        lifecycle.woken.append(self._changed)
        lifecycle.ended.append(self._changed)

    async def close(self) -> None:
        """Agents go on; what they ask meanwhile waits in their sandboxes."""
        await asyncio.gather(*(self.detach(sandbox_id) for sandbox_id in list(self._keepers)))
        await self._gateway.close()

    # where an agent finds its model ------------------------------------------------------------------------------------

    async def endpoint(
        self, session: Session, sandbox: Sandbox, profile: Profile, model: str | None
    ) -> ModelEndpoint | None:
        """None: the agent needs no model. Opens the tunnel, as `attach` does. NoModelError says what to configure; `model` may be named
        with its provider: `NAME/model`."""
        if not profile.apis:
            return None
        provider, api, chosen = chosen_from(await self.providers.usable(session.project_id), profile, model)
        await self.attach(session, sandbox)
        port = await self._keepers[sandbox.id].up()
        capability = await asyncio.to_thread(self._capabilities.of, sandbox.id)
        return ModelEndpoint(api, f"http://127.0.0.1:{port}/{provider.id}", capability, chosen)

    async def require(self, project_id: str | None, profile: Profile, model: str | None) -> None:
        """NoModelError when `endpoint` would have none to give."""
        if profile.apis:
            chosen_from(await self.providers.usable(project_id), profile, model)

    # the tunnel --------------------------------------------------------------------------------------------------------

    async def attach(self, session: Session, sandbox: Sandbox) -> None:
        """When it returns, agents in the sandbox are served, until `detach`, through breaks of any kind. Idempotent. Raises why not, and
        then nothing is kept: NoPythonError, SandboxNotRunningError (it is never woken), TunnelError …"""
        keeper = self._keepers.get(sandbox.id)
        if keeper is None or keeper.over:
            place = Place(sandbox.id, session.id, functools.partial(self._turn_of, sandbox.id))
            keeper = Keeper(self._lifecycle, sandbox.id, functools.partial(self._gateway.serve, place), self._room)
            self._keepers[sandbox.id] = keeper
            keeper.start()
        try:
            await keeper.up()
        except SandyardError:
            if self._keepers.get(sandbox.id) is keeper:
                await self.detach(sandbox.id)
            raise

    async def detach(self, sandbox_id: str) -> None:
        """Idempotent. What agents ask from now on waits, until somebody attaches."""
        keeper = self._keepers.pop(sandbox_id, None)
        if keeper is not None:
            await keeper.stop()

    async def _changed(self, row: Sandbox) -> None:
        if (keeper := self._keepers.get(row.id)) is not None:
            keeper.nudge()

    # who pays ----------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def counted(self, sandbox_id: str, turn: Turn) -> Iterator[None]:
        """What agents in this sandbox ask meanwhile belongs to this turn."""
        turns = self._turns.setdefault(sandbox_id, [])
        turns.append(turn.id)
        try:
            yield
        finally:
            turns.remove(turn.id)
            if not turns and self._turns.get(sandbox_id) is turns:
                del self._turns[sandbox_id]

    def _turn_of(self, sandbox_id: str) -> str | None:
        turns = self._turns.get(sandbox_id)
        return turns[-1] if turns else None

    async def check_budget(self, session: Session) -> None:
        """OverBudgetError when the session's task or project may spend no more."""
        await self._budgets.check(session)

    async def usage(
        self,
        *,
        turn_id: str | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        project_id: str | None = None,
        since: datetime | None = None,
    ) -> Spent:
        """Of all requests to which all of this applies."""
        which = calls_of(turn_id=turn_id, session_id=session_id, task_id=task_id, project_id=project_id, since=since)
        return await self._ledger.spent(*which)

    async def report(
        self,
        caller: Principal,
        *,
        session_id: str | None = None,
        task_id: str | None = None,
        project_id: str | None = None,
        since: datetime | None = None,
    ) -> tuple[Spent, list[tuple[str | None, Spent]]]:
        """What the caller may see of it, in all and by model. NotFoundError for what they may not."""
        async with self._database.reading() as reading:
            await require_visible(reading, caller, session_id=session_id, task_id=task_id, project_id=project_id)
        which = calls_of(session_id=session_id, task_id=task_id, project_id=project_id, since=since)
        which += calls_visible_to(caller)
        return await self._ledger.spent(*which), await self._ledger.by_model(*which)

    async def days(
        self, caller: Principal, *, project_id: str | None = None, since: datetime | None = None
    ) -> tuple[list[DaySpent], bool]:
        """What the caller may see of it by day, project and model; and whether that is not all. NotFoundError as in `report`."""
        async with self._database.reading() as reading:
            await require_visible(reading, caller, session_id=None, task_id=None, project_id=project_id)
        which = calls_of(project_id=project_id, since=since) + calls_visible_to(caller)
        return await self._ledger.by_day(*which)

    async def test(self, caller: Principal, provider_id: str) -> Verdict:
        """Ask the provider something tiny with its real key. For who may change it."""
        row = await self.providers.require_change(caller, provider_id)
        return await tried(self._gateway.client_for(row.base_url), row, await self.providers.reveal(row))

    async def _tell(self, turn_id: str, sentence: str) -> None:
        log.info("turn_over_budget", turn=turn_id, reason=sentence)
        for hook in self.over_budget:
            await hook(turn_id, sentence)


def chosen_from(
    providers: Sequence[ModelProvider], profile: Profile, model: str | None
) -> tuple[ModelProvider, ModelApi, str | None]:
    """The first provider that fits: by what the agent speaks best, then a project's own before everybody's. A provider without a list of
    models takes any."""
    fitting = [
        (provider, api) for api in profile.apis for provider in providers if api in SPEAKS[ModelApi(provider.kind)]
    ]
    if not fitting:
        spoken = " or ".join(api.value for api in profile.apis)
        raise NoModelError(
            f"The agent {profile.name} needs a model, and there is no provider for it that speaks {spoken}. Add one with "
            f"`sandyard model add {profile.apis[0].value}`, with --project for one project or, as an administrator, for everybody."
        )
    if model is None:
        provider, api = fitting[0]
        return provider, api, next(iter([*provider.models, *profile.models]), None)
    for provider, api in fitting:
        if model in provider.models:
            return provider, api, model
    name, slash, rest = model.partition("/")
    for provider, api in fitting:
        if slash and provider.name == name:
            return provider, api, rest
    for provider, api in fitting:
        if not provider.models:
            return provider, api, model
    known = sorted({known for provider, _ in fitting for known in provider.models})
    raise NoModelError(
        f"No provider that the agent {profile.name} can use has the model {model[:200]}. There are: {', '.join(known[:50])}."
    )
