"""How one preparation is made: in a sandbox of its own, step by step, until its files are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.text import storable
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command as CommandRow
from sandyard.platform.db.models import Project, Sandbox
from sandyard.platform.domain.agents.launching import put_files
from sandyard.platform.domain.agents.model import LaunchWish, Profile
from sandyard.platform.domain.git.guest_prepared import Sealed
from sandyard.platform.domain.git.model import FOLDER
from sandyard.platform.domain.git.prepared import PreparedCheckouts
from sandyard.platform.domain.preparing.devcontainer import Command
from sandyard.platform.domain.preparing.model import PreparationFailedError
from sandyard.platform.domain.preparing.recipe import Recipe, Wish
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import CommandRefusedError, CommandStatus, NewCommand
from sandyard.platform.domain.sandboxes.output import STDERR, STDOUT
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

T = TypeVar("T")
TAIL, SHOWN = 4000, 2000
HOME = FOLDER.rpartition("/")[0]
ENVS = {"CI": "true", "DEBIAN_FRONTEND": "noninteractive"}
"""Nobody is there to answer."""
Install = Callable[[SandboxEngine, str, Profile, PlatformSettings, Callable[[str], None]], Awaitable[bool]]
"""Makes sure that an agent is in a sandbox; False: it was there."""
Tell = Callable[..., Awaitable[None]]
"""Called with what is being done, in words, and what is to be known of the preparation from now on."""


@dataclass(frozen=True, slots=True)
class Builder:
    database: Database
    lifecycle: Lifecycle
    commands: Commands
    git: PreparedCheckouts
    settings: PlatformSettings
    install: Install

    async def build(
        self, caller: Principal, project: Project, sandbox: Sandbox, *, wished: Wish, recipe: Recipe, tell: Tell
    ) -> str:
        """The snapshot. PreparationFailedError; what the engine, git and the agent's installation raise."""
        await tell("waiting for a sandbox")
        sandbox = await self._while_away(lambda: self.lifecycle.provisioned(sandbox.id))
        await tell("checking out", engineId=sandbox.engine_id)
        put = await self._while_away(
            lambda: self.git.put(project, sandbox, wished.base_branch, wished.base_commit, _unheard)
        )
        await tell("checked out", shallow=list(put.shallow), lacks=list(put.warnings))
        if wished.profile.install is not None:
            async with self.lifecycle.using(sandbox) as engine_id:
                await self.install(self.lifecycle.engine, engine_id, wished.profile, self.settings, lambda _: None)
        if not wished.profile.apis:  # else its files depend on the session's model
            launch = wished.profile.launch(LaunchWish(HOME, FOLDER))
            async with self.lifecycle.using(sandbox) as engine_id:
                await put_files(self.lifecycle.engine, engine_id, launch)
        ran: list[dict[str, Any]] = []
        for command in recipe.commands:
            new = NewCommand(command.command, timeout_s=wished.timeout_s, cwd=FOLDER, envs={**ENVS, **recipe.envs})
            begun = await self._start(caller, sandbox, command, new)
            told = {"source": command.source, "command": storable(command.command[:SHOWN]), "commandId": begun.id}
            await tell(f"running {command.source}", commands=[*ran, {**told, "exitCode": None, "seconds": 0}])
            over = await self._while_away(partial(self.commands.wait, begun.id))
            ran.append({**told, "exitCode": over.exit_code, "seconds": round(over.duration_s or 0.0, 3)})
            await tell(f"ran {command.source}", commands=ran)
            await self._check(over, ran[-1])
        sealed = await self._while_away(lambda: self.git.seal(sandbox, wished.base_commit))
        warnings = [*recipe.warnings, *_left_by(sealed)]
        await tell("keeping it", warnings=warnings)
        async with self.lifecycle.using(sandbox) as engine_id:
            if ran:
                await self.lifecycle.engine.commands.forget(engine_id, *(one["commandId"] for one in ran))
            return await self.lifecycle.engine.snapshot(engine_id)

    async def _while_away(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self.database.retry_while_away(work, "preparation")

    async def _start(self, caller: Principal, sandbox: Sandbox, command: Command, new: NewCommand) -> CommandRow:
        try:
            return await self.commands.execute(caller, sandbox.id, new, internal=True)
        except (CommandRefusedError, InvalidInputError) as error:
            raise PreparationFailedError(
                f"The setup of {command.source} was refused: {error.message} Change it, or the project's command policy.",
                {"source": command.source, "command": storable(command.command[:SHOWN])},
            ) from None

    async def _check(self, row: CommandRow, told: Mapping[str, Any]) -> None:
        if row.status == CommandStatus.EXITED and row.exit_code == 0:
            return
        tail = await self._tail(row)
        how = f"ended with exit code {row.exit_code}." if row.status == CommandStatus.EXITED else f"is {row.status}."
        because = f" {row.error}" if row.error else ""
        said = f" It said: {tail[-SHOWN:]}" if tail else " It said nothing."
        raise PreparationFailedError(
            f"The setup of {told['source']} {how}{because}{said}\nMend it in the repository or in the project's settings (setup), "
            f"then try again. All of its output: sandyard sandbox logs {row.sandbox_id} --command {row.id}",
            {**told, "outputTail": tail},
        )

    async def _tail(self, row: CommandRow) -> str:
        """The end of what it wrote: of its errors, and before that of the rest."""
        pieces = []
        for stream, total in ((STDOUT, row.stdout_bytes), (STDERR, row.stderr_bytes)):
            data = await self.commands.files.read(row.id, stream, max(0, total - TAIL // 2), TAIL // 2)
            pieces.append(storable(data.decode(errors="replace")).strip())
        return "\n".join(piece for piece in pieces if piece)[-TAIL:]


def _unheard(what: str, percent: int | None = None) -> None:
    """Steps are told as a whole."""


def _left_by(sealed: Sealed) -> list[str]:
    """What a setup has done to the checkout that people may not expect, in sentences."""
    told = []
    if sealed.restored_count:
        names = _some(sealed.restored, sealed.restored_count)
        told.append(f"The setup has changed files of the repository, which are again as the commit has them: {names}.")
    if sealed.ignored_count:
        names = _some(sealed.ignored, sealed.ignored_count)
        told.append(
            f"The setup has made files that the repository does not ignore. They stay, and are not committed: {names}."
        )
    return told


def _some(names: tuple[str, ...], count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return ", ".join(names) + more
