"""Build one preparation step by step in its own sandbox, and save its files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Unpack

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.text import make_storable
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command as CommandRow
from sandyard.platform.db.models import Project, Sandbox
from sandyard.platform.db.models.task_details import PreparationDetail, SetupCommand
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.agents.installation import put_files
from sandyard.platform.domain.agents.profiles.model import LaunchRequest, Profile
from sandyard.platform.domain.git.checkout.sandbox_git import SealedCheckout
from sandyard.platform.domain.git.model import CHECKOUT_FOLDER
from sandyard.platform.domain.git.prepared_checkouts import PreparedCheckouts
from sandyard.platform.domain.preparations.devcontainer import Command
from sandyard.platform.domain.preparations.model import PreparationFailedError
from sandyard.platform.domain.preparations.recipe import PreparationSpec, Recipe
from sandyard.platform.domain.sandboxes.command_output import STDERR, STDOUT
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import CommandRefusedError, CommandStatus, NewCommand
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

MAX_TAIL, MAX_SHOWN = 4000, 2000
HOME = CHECKOUT_FOLDER.rpartition("/")[0]
ENVS = {"CI": "true", "DEBIAN_FRONTEND": "noninteractive"}
"""Setup runs without a person to answer prompts."""
Install = Callable[[SandboxEngine, str, Profile, PlatformSettings, Callable[[str], None]], Awaitable[bool]]
"""Ensures that an agent is installed in a sandbox. Returns False if it already was."""


class ReportProgress(Protocol):
    async def __call__(self, current_step: str, **facts: Unpack[PreparationDetail]) -> None:
        """Report the current step, and store facts about the preparation."""


@dataclass(frozen=True, slots=True)
class Builder:
    database: Database
    lifecycle: Lifecycle
    commands: Commands
    git: PreparedCheckouts
    settings: PlatformSettings
    install: Install

    async def build(
        self,
        caller: Principal,
        project: Project,
        sandbox: Sandbox,
        *,
        spec: PreparationSpec,
        recipe: Recipe,
        report: ReportProgress,
    ) -> str:
        """Build it in this sandbox and return the id of the snapshot.

        Raises PreparationFailedError, and errors of the engine, Git and the agent's installation.
        """
        await report("waiting for a sandbox")
        sandbox = await retry_while_database_unavailable(
            lambda: self.lifecycle.wait_until_provisioned(sandbox.id), "preparation"
        )
        await report("checking out", engineId=sandbox.engine_id)
        checkout = await retry_while_database_unavailable(
            lambda: self.git.create(project, sandbox, spec.base_branch, spec.base_commit, _ignore_progress),
            "preparation",
        )
        await report("checked out", shallow=list(checkout.shallow), lacks=list(checkout.warnings))
        if spec.profile.install is not None:
            await self._install_agent(sandbox, spec.profile, report)
        if not spec.profile.apis:  # otherwise its files depend on the session's model
            launch = spec.profile.launch(LaunchRequest(HOME, CHECKOUT_FOLDER))
            async with self.lifecycle.using(sandbox) as engine_id:
                await put_files(self.lifecycle.engine, engine_id, launch)
        entries: list[SetupCommand] = []
        for command in recipe.commands:
            new = NewCommand(
                command.command, timeout_s=spec.timeout_s, cwd=CHECKOUT_FOLDER, envs={**ENVS, **recipe.envs}
            )
            started = await self._start(caller, sandbox, command, new)
            entry: SetupCommand = {
                "source": command.source,
                "command": make_storable(command.command[:MAX_SHOWN]),
                "commandId": started.id,
                "exitCode": None,
                "seconds": 0,
            }
            await report(f"running {command.source}", commands=[*entries, entry])
            finished = await retry_while_database_unavailable(partial(self.commands.wait, started.id), "preparation")
            entries.append({**entry, "exitCode": finished.exit_code, "seconds": round(finished.duration_s or 0.0, 3)})
            await report(f"ran {command.source}", commands=entries)
            await self._require_success(finished, entries[-1])
        sealed = await retry_while_database_unavailable(lambda: self.git.seal(sandbox, spec.base_commit), "preparation")
        warnings = [*recipe.warnings, *_describe_checkout_changes(sealed)]
        await report("saving the snapshot", warnings=warnings)
        async with self.lifecycle.using(sandbox) as engine_id:
            if entries:
                await self.lifecycle.engine.commands.forget(
                    engine_id, *(command_entry["commandId"] for command_entry in entries)
                )
            return await self.lifecycle.engine.create_snapshot(engine_id)

    async def _install_agent(self, sandbox: Sandbox, profile: Profile, report: ReportProgress) -> None:
        """Install the agent unless it is there. Usually the sandbox was created from a snapshot that has it."""
        reports: list[asyncio.Task[None]] = []  # at most one: the install callback cannot wait for it

        def report_first_step(_: str) -> None:
            if not reports:
                reports.append(asyncio.ensure_future(report(f"installing {profile.title}")))

        async with self.lifecycle.using(sandbox) as engine_id:
            try:
                await self.install(self.lifecycle.engine, engine_id, profile, self.settings, report_first_step)
            finally:
                await asyncio.gather(*reports)

    async def _start(self, caller: Principal, sandbox: Sandbox, command: Command, new: NewCommand) -> CommandRow:
        try:
            return await self.commands.execute(caller, sandbox.id, new, internal=True)
        except (CommandRefusedError, InvalidInputError) as error:
            raise PreparationFailedError(
                f"The setup command of {command.source} was denied: {error.message} Change it, or change the project's command policy.",
                {"source": command.source, "command": make_storable(command.command[:MAX_SHOWN])},
            ) from None

    async def _require_success(self, row: CommandRow, entry: SetupCommand) -> None:
        """Raise PreparationFailedError with the end of the output unless the command exited with code 0."""
        if row.status == CommandStatus.EXITED and row.exit_code == 0:
            return
        tail = await self._read_tail(row)
        if row.status == CommandStatus.EXITED:
            outcome = f"exited with code {row.exit_code}."
        else:
            outcome = "was killed." if row.status == CommandStatus.KILLED else "did not finish."
        error = f" {row.error}" if row.error else ""
        output = f" Output: {tail[-MAX_SHOWN:]}" if tail else " There was no output."
        raise PreparationFailedError(
            f"The setup command of {entry['source']} {outcome}{error}{output}\nFix it in the repository or in the project's "
            f"settings (setup), then try again. See the full output of command {row.id} in sandbox {row.sandbox_id}.",
            {**entry, "outputTail": tail},
        )

    async def _read_tail(self, row: CommandRow) -> str:
        """Return the end of the output: stdout, then stderr."""
        pieces = []
        for stream, total in ((STDOUT, row.stdout_bytes), (STDERR, row.stderr_bytes)):
            data = await self.commands.files.read(row.id, stream, max(0, total - MAX_TAIL // 2), MAX_TAIL // 2)
            pieces.append(make_storable(data.decode(errors="replace")).strip())
        return "\n".join(piece for piece in pieces if piece)[-MAX_TAIL:]


def _ignore_progress(what: str, percent: int | None = None) -> None:
    """Ignore progress, because steps are reported as a whole."""


def _describe_checkout_changes(sealed: SealedCheckout) -> list[str]:
    """Return a warning for each kind of unexpected change that the setup made to the checkout."""
    warnings = []
    if sealed.restored_count:
        names = _join_names(sealed.restored, sealed.restored_count)
        warnings.append(
            f"The setup changed files of the repository. They were restored to the committed version: {names}."
        )
    if sealed.ignored_count:
        names = _join_names(sealed.ignored, sealed.ignored_count)
        warnings.append(
            f"The setup created files that the repository does not ignore. They are kept but not committed: {names}."
        )
    return warnings


def _join_names(names: tuple[str, ...], count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return ", ".join(names) + more
