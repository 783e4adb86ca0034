"""Build one preparation step by step in its own sandbox, and save its files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.text import storable
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command as CommandRow
from sandyard.platform.db.models import Project, Sandbox
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.agents.installation import put_files
from sandyard.platform.domain.agents.profiles.model import LaunchRequest, Profile
from sandyard.platform.domain.git.checkout.sandbox_git import SealedCheckout
from sandyard.platform.domain.git.model import CHECKOUT_FOLDER
from sandyard.platform.domain.git.prepared_checkouts import PreparedCheckouts
from sandyard.platform.domain.preparations.devcontainer import Command
from sandyard.platform.domain.preparations.model import PreparationFailedError
from sandyard.platform.domain.preparations.recipe import Recipe, Wish
from sandyard.platform.domain.sandboxes.command_output import STDERR, STDOUT
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import CommandRefusedError, CommandStatus, NewCommand
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

TAIL, SHOWN = 4000, 2000
HOME = CHECKOUT_FOLDER.rpartition("/")[0]
ENVS = {"CI": "true", "DEBIAN_FRONTEND": "noninteractive"}
"""Setup runs without a person to answer prompts."""
Install = Callable[[SandboxEngine, str, Profile, PlatformSettings, Callable[[str], None]], Awaitable[bool]]
"""Ensures that an agent is installed in a sandbox. Returns False if it already was."""
Tell = Callable[..., Awaitable[None]]
"""Called with a description of the current work, and with facts to store about the preparation."""


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
        """Return the snapshot. Raises PreparationFailedError, and errors of the engine, Git and the agent's installation."""
        await tell("waiting for a sandbox")
        sandbox = await retry_while_database_unavailable(
            lambda: self.lifecycle.wait_until_provisioned(sandbox.id), "preparation"
        )
        await tell("checking out", engineId=sandbox.engine_id)
        put = await retry_while_database_unavailable(
            lambda: self.git.create(project, sandbox, wished.base_branch, wished.base_commit, _unheard), "preparation"
        )
        await tell("checked out", shallow=list(put.shallow), lacks=list(put.warnings))
        if wished.profile.install is not None:
            async with self.lifecycle.using(sandbox) as engine_id:
                await self.install(self.lifecycle.engine, engine_id, wished.profile, self.settings, lambda _: None)
        if not wished.profile.apis:  # otherwise its files depend on the session's model
            launch = wished.profile.launch(LaunchRequest(HOME, CHECKOUT_FOLDER))
            async with self.lifecycle.using(sandbox) as engine_id:
                await put_files(self.lifecycle.engine, engine_id, launch)
        ran: list[dict[str, Any]] = []
        for command in recipe.commands:
            new = NewCommand(
                command.command, timeout_s=wished.timeout_s, cwd=CHECKOUT_FOLDER, envs={**ENVS, **recipe.envs}
            )
            begun = await self._start(caller, sandbox, command, new)
            told = {"source": command.source, "command": storable(command.command[:SHOWN]), "commandId": begun.id}
            await tell(f"running {command.source}", commands=[*ran, {**told, "exitCode": None, "seconds": 0}])
            over = await retry_while_database_unavailable(partial(self.commands.wait, begun.id), "preparation")
            ran.append({**told, "exitCode": over.exit_code, "seconds": round(over.duration_s or 0.0, 3)})
            await tell(f"ran {command.source}", commands=ran)
            await self._check(over, ran[-1])
        sealed = await retry_while_database_unavailable(
            lambda: self.git.seal(sandbox, wished.base_commit), "preparation"
        )
        warnings = [*recipe.warnings, *_left_by(sealed)]
        await tell("saving the snapshot", warnings=warnings)
        async with self.lifecycle.using(sandbox) as engine_id:
            if ran:
                await self.lifecycle.engine.commands.forget(engine_id, *(one["commandId"] for one in ran))
            return await self.lifecycle.engine.create_snapshot(engine_id)

    async def _start(self, caller: Principal, sandbox: Sandbox, command: Command, new: NewCommand) -> CommandRow:
        try:
            return await self.commands.execute(caller, sandbox.id, new, internal=True)
        except (CommandRefusedError, InvalidInputError) as error:
            raise PreparationFailedError(
                f"The setup of {command.source} was denied: {error.message} Change it, or change the project's command policy.",
                {"source": command.source, "command": storable(command.command[:SHOWN])},
            ) from None

    async def _check(self, row: CommandRow, told: Mapping[str, Any]) -> None:
        if row.status == CommandStatus.EXITED and row.exit_code == 0:
            return
        tail = await self._tail(row)
        how = f"exited with code {row.exit_code}." if row.status == CommandStatus.EXITED else f"is {row.status}."
        because = f" {row.error}" if row.error else ""
        said = f" Output: {tail[-SHOWN:]}" if tail else " There was no output."
        raise PreparationFailedError(
            f"The setup of {told['source']} {how}{because}{said}\nFix it in the repository or in the project's settings (setup), then "
            f"try again. The full output is that of command {row.id} in sandbox {row.sandbox_id}.",
            {**told, "outputTail": tail},
        )

    async def _tail(self, row: CommandRow) -> str:
        """Return the end of the output: stdout, then stderr."""
        pieces = []
        for stream, total in ((STDOUT, row.stdout_bytes), (STDERR, row.stderr_bytes)):
            data = await self.commands.files.read(row.id, stream, max(0, total - TAIL // 2), TAIL // 2)
            pieces.append(storable(data.decode(errors="replace")).strip())
        return "\n".join(piece for piece in pieces if piece)[-TAIL:]


def _unheard(what: str, percent: int | None = None) -> None:
    """Ignore progress, because steps are reported as a whole."""


def _left_by(sealed: SealedCheckout) -> list[str]:
    """Return warnings about unexpected changes that the setup made to the checkout."""
    told = []
    if sealed.restored_count:
        names = _some(sealed.restored, sealed.restored_count)
        told.append(f"The setup changed files of the repository. They were restored to the committed version: {names}.")
    if sealed.ignored_count:
        names = _some(sealed.ignored, sealed.ignored_count)
        told.append(
            f"The setup created files that the repository does not ignore. They are kept but not committed: {names}."
        )
    return told


def _some(names: tuple[str, ...], count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return ", ".join(names) + more
