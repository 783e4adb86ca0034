"""Runs the steps of a build in its sandbox. Each kind of step changes files, or the state that is passed on."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from shlex import quote

from sandyard.engine.builds.files import Archives, validate_hash
from sandyard.engine.builds.logs import BuildLog, LineSplitter
from sandyard.engine.builds.model import BuildFailedError, State, Step, StepKind
from sandyard.engine.builds.scripts import ADD_USER, COPY, MAKE_DIRECTORY, PATH_FILE
from sandyard.engine.sandboxes.internal_sandboxes import InternalSandbox
from sandyard.kit.errors import InvalidInputError, NoSpaceError, SandyardError
from sandyard.kit.ids import make_random_id

VALUE_LIMIT = 64 << 10
SCRIPT_OUTPUT_LINES = 1000
ROOT = "root"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}")
_GLOB = re.compile(r"[*?\[{]")


def validate_step(step: Step) -> None:
    """Raise InvalidInputError if the step's arguments are invalid, regardless of the sandbox."""
    kind, args = step.kind, step.args
    min_args = {StepKind.COPY: 2, StepKind.ENV: 2}.get(kind, 1)
    if len(args) < min_args:
        raise InvalidInputError(f"{kind.value} needs at least {min_args} argument{'s' if min_args > 1 else ''}.")
    if any("\0" in arg for arg in args):
        raise InvalidInputError(f"An argument of {kind.value} contains a NUL character.")
    if kind is StepKind.ENV:
        if len(args) % 2:
            raise InvalidInputError("ENV needs a value for each name.")
        for name in args[::2]:
            if not _VARIABLE.fullmatch(name):
                raise InvalidInputError(f"ENV: {name[:100]!r} is not a valid variable name.")
    if kind is StepKind.COPY:
        if not step.files:
            raise InvalidInputError("COPY needs the hash of the files (filesHash).")
        validate_hash(step.files)


def needs_sandbox(step: Step) -> bool:
    """Return whether the step has to run something."""
    return step.kind is not StepKind.ENV or any("$" in value for value in step.args[1::2]) or "PATH" in step.args[::2]


def apply_plain_step(step: Step, state: State) -> State:
    """Return the state after a step that needs no sandbox."""
    return replace(state, env={**state.env, **dict(zip(step.args[::2], step.args[1::2], strict=True))})


class Executor:
    """Runs the steps of one build. `number` is the step's number, `prefix` the start of its output lines."""

    def __init__(self, archives: Archives, log: BuildLog) -> None:
        self._archives = archives
        self.log = log

    async def run_step(
        self, sandbox: InternalSandbox, step: Step, state: State, prefix: str, number: str
    ) -> tuple[State, bool]:
        """Run a step. Return the state after it, and whether files may have changed. Raises BuildFailedError, without a
        step, if it fails."""
        match step.kind:
            case StepKind.RUN:
                user = step.args[1] if len(step.args) > 1 and step.args[1] else state.user
                await self.run_command(sandbox, step.args[0], state, prefix, number, user=user)
                return state, True
            case StepKind.ENV:
                return await self._run_env(sandbox, step, state), "PATH" in step.args[::2]
            case StepKind.WORKDIR:
                return await self._run_workdir(sandbox, step.args[0], state, prefix, number)
            case StepKind.USER:
                return await self._run_user(sandbox, step.args[0], state, prefix, number)
            case StepKind.COPY:
                await self._run_copy(sandbox, step, state, prefix, number)
                return state, True

    async def run_command(
        self, sandbox: InternalSandbox, command: str, state: State, prefix: str, number: str, *, user: str | None = None
    ) -> None:
        """Run a command of the recipe."""
        try:
            code = await self.run_shell(
                sandbox, command, state, prefix, number, user=user or state.user, cwd=state.workdir
            )
        except SandyardError as error:
            raise BuildFailedError(
                f"failed to run command '{command}': {describe_command_error(error.message)}"
            ) from error
        if code != 0:
            raise BuildFailedError(f"failed to run command '{command}': {describe_exit_status(code, sandbox)}")

    async def run_shell(
        self,
        sandbox: InternalSandbox,
        command: str,
        state: State,
        prefix: str,
        number: str,
        *,
        user: str = ROOT,
        cwd: str | None = "/",
    ) -> int:
        """Run a command, log its output and return its exit status."""
        streams = {"stdout": LineSplitter(), "stderr": LineSplitter()}

        def output(stream: str, data: bytes) -> None:
            # output that the full log would drop need not be split into lines
            lines = [""] if self.log.is_full else streams[stream].feed(data)
            for line in lines:
                self.log.add_output(prefix, stream, line, number)

        try:
            return await sandbox.agent.run(command, user=user, cwd=cwd, env=state.env, output=output)
        finally:
            for stream, lines in streams.items():
                for line in lines.end():
                    self.log.add_output(prefix, stream, line, number)

    async def _run_env(self, sandbox: InternalSandbox, step: Step, state: State) -> State:
        env: dict[str, str] = dict(state.env)
        for name, value in zip(step.args[::2], step.args[1::2], strict=True):
            env[name] = await self._expand_variables(sandbox, value, env)
        if "PATH" in step.args[::2]:
            # a login shell resets PATH before it reads a template's settings
            script = PATH_FILE.format(line=quote(f"export PATH={quote(env['PATH'])}"))
            if await sandbox.agent.run(script, user=ROOT, cwd="/") != 0:
                raise BuildFailedError("Could not write PATH to /etc/profile.d.")
        return replace(state, env=env)

    async def _expand_variables(self, sandbox: InternalSandbox, value: str, env: Mapping[str, str]) -> str:
        """Replace `$NAME` and `${NAME}` as a shell in the sandbox does, without running anything."""
        if "$" not in value:
            return value
        escaped = re.sub(r'([\\"`]|\$\()', r"\\\1", value)
        expanded = bytearray()

        def output(stream: str, data: bytes) -> None:
            if stream == "stdout" and len(expanded) <= VALUE_LIMIT:
                expanded.extend(data)

        code = await sandbox.agent.run(f'printf %s "{escaped}"', user=ROOT, cwd="/", env=env, output=output)
        if code != 0 or len(expanded) > VALUE_LIMIT:
            raise BuildFailedError(
                f"Could not expand {value[:200]!r}: the shell failed, or the result has more than {VALUE_LIMIT >> 10} KiB."
            )
        return expanded.decode(errors="replace")

    async def _run_workdir(
        self, sandbox: InternalSandbox, path: str, state: State, prefix: str, number: str
    ) -> tuple[State, bool]:
        path = await self._expand_variables(sandbox, path, state.env)
        script = MAKE_DIRECTORY.format(path=quote(path), workdir=quote(state.workdir or ""), user=quote(state.user))
        code, lines = await self.run_script(sandbox, script, state, prefix, number)
        if code != 0 or not lines:
            raise BuildFailedError(f"failed to create workdir '{path}'")
        return replace(state, workdir=posixpath.normpath(lines[0])), "new" in lines[1:]

    async def _run_user(
        self, sandbox: InternalSandbox, name: str, state: State, prefix: str, number: str
    ) -> tuple[State, bool]:
        name = (await self._expand_variables(sandbox, name, state.env)).partition(":")[0]
        if not _USER.fullmatch(name):
            raise BuildFailedError(f"failed to create user: {name[:100]!r} is not a valid user name")
        code, lines = await self.run_script(sandbox, ADD_USER.format(user=quote(name)), state, prefix, number)
        if code != 0:
            raise BuildFailedError(f"failed to create user '{name}'")
        return replace(state, user=name), "new" in lines

    async def run_script(
        self, sandbox: InternalSandbox, script: str, state: State, prefix: str, number: str
    ) -> tuple[int, list[str]]:
        """Run one of the engine's scripts and return the lines it prints. Its error output is logged."""
        stdout_lines, stderr_lines = LineSplitter(), LineSplitter()
        printed: list[str] = []

        def output(stream: str, data: bytes) -> None:
            if stream == "stdout":
                if len(printed) < SCRIPT_OUTPUT_LINES:  # the image's own shell and profile may print without end
                    printed.extend(stdout_lines.feed(data))
            else:
                for line in stderr_lines.feed(data):
                    self.log.add_output(prefix, stream, line, number)

        code = await sandbox.agent.run(script, user=ROOT, cwd="/", env=state.env, output=output)
        return code, [*printed, *stdout_lines.end()]

    async def _run_copy(self, sandbox: InternalSandbox, step: Step, state: State, prefix: str, number: str) -> None:
        source, target = get_copy_source(step.args[0]), await self._expand_variables(sandbox, step.args[1], state.env)
        owner = step.args[2] if len(step.args) > 2 and step.args[2] else state.user
        mode = step.args[3] if len(step.args) > 3 else ""
        work = f"/tmp/.copy-{make_random_id('', 12)}"  # noqa: S108 - in the sandbox
        assert step.files is not None
        if not self._archives.has(step.files):
            raise BuildFailedError(f"The files for COPY {step.args[0]} were not uploaded. Build again.")
        try:
            await sandbox.agent.write(f"{work}/archive", self._archives.read(step.files), user=ROOT)
        except SandyardError as error:
            raise await self._explain_rejected_archive(sandbox, step, error) from error
        script = COPY.format(
            work=quote(work),
            source=quote(source),
            target=quote(target),
            owner=quote(owner),
            mode=quote(mode),
            user=quote(state.user),
            workdir=quote(state.workdir or ""),
        )
        code = await self.run_shell(sandbox, script, state, prefix, number)
        if code != 0:
            raise BuildFailedError(
                f"failed to copy '{step.args[0]}' to '{target}': {describe_exit_status(code, sandbox)}"
            )

    async def _explain_rejected_archive(
        self, sandbox: InternalSandbox, step: Step, error: SandyardError
    ) -> BuildFailedError:
        """Find out why an archive was not accepted: an agent whose disk is full closes the connection without a reason."""
        full = isinstance(error, NoSpaceError)
        if not full:
            size, probe = self._archives.get_size(step.files or ""), f"/tmp/.probe-{make_random_id('', 12)}"  # noqa: S108
            script = f"head -c {size} /dev/zero > {probe}; code=$?; rm -f {probe}; exit $code"
            full = await sandbox.agent.run(script, user=ROOT, cwd="/") != 0
        if full:
            return BuildFailedError(f"Could not run COPY {step.args[0]}: the disk of the build is full.")
        return BuildFailedError(error.message)


def describe_exit_status(code: int, sandbox: InternalSandbox) -> str:
    if code in {-1, 137}:
        memory = sandbox.limits.memory_mb
        return f"it was killed, perhaps because it needed more than {memory} MiB of memory (memory_mb of the build)"
    return f"exit status {code}"


def describe_command_error(message: str) -> str:
    """Describe why a command could not be started, in the words that E2B clients know."""
    cause = message.removeprefix("The sandbox could not run a command: ")
    if cause == message:
        return message
    return f"command failed: unauthenticated: {cause}" if "invalid username" in cause else f"command failed: {cause}"


def get_copy_source(path: str) -> str:
    """Return the part of `src/**/*.py` before the first pattern, because clients have already selected the files."""
    parts = posixpath.normpath(path.replace("\\", "/")).split("/")
    plain = [part for part in parts if part]
    for index, part in enumerate(plain):
        if _GLOB.search(part):
            plain = plain[:index]
            break
    return "/".join(plain) or "."
