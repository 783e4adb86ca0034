"""Commands that survive the process that started them: run under the relay, and read from its journal at any offset."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator

from e2b.exceptions import NotFoundException

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineError,
    FileMissingError,
    NotEnoughSpaceError,
    ProcessesFullError,
    SandboxNotRunningError,
    SandboxUnreachableError,
)
from sandyard.platform.domain.sandboxes.e2b.files import Files
from sandyard.platform.domain.sandboxes.e2b.relay import (
    SILENCE_S,
    SPEC_INLINE,
    CommandEnded,
    CommandOutput,
    CommandSpec,
    CommandStarted,
    EndReason,
    Frame,
    RelayStream,
    Stream,
    get_journal_path,
    get_spec_path,
    parse_number,
    sweep_paths,
)
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle

log = get_logger(__name__)

PATIENCE_S = 300.0
"""How long an engine may be unavailable before a follower of a command gets an error."""
START_PATIENCE_S = 15.0
"""The same limit for a command that is not known to have started."""
PAUSED_RETRIES = 7
"""How often a follower of a command looks for a paused sandbox to run again, in about 12 s, before it gets an error."""
SILENT_RUNS = 5
_NO_RELAY = "The sandbox cannot run the platform's relay. Check that /bin/bash works in it."
SWEEP_S, SWEEP_LOOK_S = 15.0, 0.2
"""Time limit for a relay to end what its command has left behind, and the interval of polling for its answer."""
ASK_S = 10.0
"""Time limit for a request that normally takes a sandbox milliseconds."""
_PAUSES = (0.1, 0.4, 1.0, 2.0, 3.0)
_STREAMS = {"1": Stream.STDOUT, "2": Stream.STDERR}
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNLIMITED = sys.maxsize
_OWNER = "root"  # may read, end and remove what any user of the sandbox has started

Event = CommandStarted | CommandOutput | CommandEnded


class Commands:
    """Commands in sandboxes.

    `start` and `follow` survive interruptions: if the stream breaks (the engine restarts, the sandbox is paused and
    resumed), they continue from the journal at the next byte, so that nothing is lost or repeated. They never resume the
    sandbox: they wait a moment, and raise SandboxNotRunningError if it stays paused. Follow the command again when it has
    been resumed. Raises SandboxNotFoundError if the sandbox is gone, and the command with it.
    """

    def __init__(
        self,
        transport: EngineTransport,
        files: Files,
        *,
        patience_s: float = PATIENCE_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._transport = transport
        self._files = files
        self._patience = patience_s
        self._silence = silence_s
        self._closing: set[asyncio.Task[None]] = set()

    def start(self, engine_id: str, spec: CommandSpec, *, max_output_bytes: int = _UNLIMITED) -> AsyncIterator[Event]:
        """Run a command at most once for its id. If it was started before, follow it from its beginning.

        Yields CommandStarted (unless it could not start), then CommandOutput, then CommandEnded. The command keeps
        running if the caller stops reading. Output of a stream beyond `max_output_bytes` bytes may be incomplete, which spares
        callers that store no more.
        """
        _check_spec(spec)
        return self._events(engine_id, _ReadState(spec.id, spec, max_output_bytes=max_output_bytes))

    def follow(
        self,
        engine_id: str,
        command_id: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        max_output_bytes: int = _UNLIMITED,
    ) -> AsyncIterator[CommandOutput | CommandEnded]:
        """Yield output from these offsets on until the command has ended, also if it ended long ago.

        Yields CommandEnded(NOT_STARTED) if the sandbox does not know the command; it may then still be started, unless
        it was claimed.
        """
        _check_id(command_id)
        return self._follow(
            engine_id, _ReadState(command_id, None, stdout_offset, stderr_offset, max_output_bytes=max_output_bytes)
        )

    async def claim(self, engine_id: str, command_id: str) -> bool:
        """Make sure that the command never starts. Returns False if it has started or was claimed before."""
        return await self._call_relay(engine_id, "claim", command_id)

    async def kill(self, engine_id: str, command_id: str) -> bool:
        """Send SIGTERM to the command and its children, and SIGKILL 3 s later. Followers see the end. Returns False if
        it does not run."""
        return await self._call_relay(engine_id, "kill", command_id)

    async def end_leftovers(self, engine_id: str, command_id: str) -> int | None:
        """End processes that a running command started and no longer holds, unless they serve something, and return how
        many.

        Asks the relay through a file, because the sandbox may be unable to start another process. None if the relay did
        not answer.
        """
        _check_id(command_id)
        wish, answer_path = sweep_paths(command_id)
        token = make_random_id()

        async def ask(handle: SandboxHandle) -> int | None:
            if not handle.python:
                return None  # its relay is a shell script, which cannot do this
            files = handle.sandbox.files
            await files.write(wish, token)
            for _ in range(round(SWEEP_S / SWEEP_LOOK_S)):
                await asyncio.sleep(SWEEP_LOOK_S)
                with contextlib.suppress(NotFoundException):
                    answer_token, _, count = (await files.read(answer_path))[:100].partition(" ")
                    if answer_token == token and count.isascii() and count.isdigit():
                        return int(count)
            return None

        return await self._transport.call_sandbox("end_leftovers", engine_id, ask, idempotent=True, attempts=1)

    async def forget(self, engine_id: str, *command_ids: str) -> None:
        """Remove the journals of these commands. Idempotent. Afterwards the ids could be started again."""
        await self._call_relay(engine_id, "forget", *command_ids)

    async def close(self) -> None:
        await end_tasks(*self._closing)

    async def _follow(self, engine_id: str, state: _ReadState) -> AsyncIterator[CommandOutput | CommandEnded]:
        events = self._events(engine_id, state)
        try:
            async for event in events:
                if not isinstance(event, CommandStarted):
                    yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined] # it is a generator

    async def _events(self, engine_id: str, state: _ReadState) -> AsyncIterator[Event]:
        now = asyncio.get_running_loop().time
        contact, failures = now(), 0
        while not state.ended:
            stream = RelayStream(self._transport, self._silence)
            try:
                await self._open(engine_id, state, stream)
                async for frame in stream.frames():
                    contact, failures = now(), 0
                    async with contextlib.aclosing(self._interpret(engine_id, state, frame)) as events:
                        async for event in events:
                            contact = now()
                            yield event
                    if state.ended or frame.kind in "ain":
                        break
                else:
                    failures += 1
                    state.check_silence(failures)
                    log.info("command_stream_ended", sandbox=engine_id, command=state.id)
            except EngineError as error:
                if isinstance(error, SandboxNotRunningError):
                    contact = now()
                if not state.may_retry(error, failures, now() - contact, self._patience):
                    raise
                failures += 1
                if failures == 1:
                    log.info("command_stream_broken", sandbox=engine_id, command=state.id, reason=error.message)
            finally:
                self._finish(stream, patience_s=1.0 if state.ended else 0.0)
            if failures:
                await self._transport.clock.sleep(_PAUSES[min(failures, len(_PAUSES)) - 1])

    async def _interpret(self, engine_id: str, state: _ReadState, frame: Frame) -> AsyncGenerator[Event, None]:
        """Yield the events of a line, with the output to fetch for it.

        Lines that no relay would send end in LOST, because the command is then out of our control.
        """
        try:
            if frame.kind == "b":
                async with contextlib.aclosing(self._fetch(engine_id, state, *frame.grown)) as outputs:
                    async for output in outputs:
                        yield output
            else:
                for event in state.events(frame):
                    yield event
        except (ValueError, OverflowError, FileMissingError):
            for event in state.finish_lost():
                yield event

    async def _fetch(
        self, engine_id: str, state: _ReadState, number: str, end: int, folder: int
    ) -> AsyncGenerator[Event, None]:
        """Fetch a stream's output from the journal: up to `end`, and what has been added since."""
        begin = state.offsets[number]
        if begin >= end or state.has_enough(number):
            return
        path = get_journal_path(state.id, number, folder)
        async with contextlib.aclosing(
            self._files.read_from(engine_id, path, begin, silence_s=self._silence)
        ) as pieces:
            async for data in pieces:
                for event in state.add(number, state.offsets[number], data):
                    yield event
                if state.has_enough(number):
                    return
        if state.offsets[number] == begin:
            raise ValueError("the journal is shorter than the relay says")
        if state.offsets[number] < end:
            raise SandboxUnreachableError("The sandbox sent less of a journal than it reported.")

    async def _open(self, engine_id: str, state: _ReadState, stream: RelayStream) -> None:
        async def begin(handle: SandboxHandle) -> None:
            if state.spec is None or state.begun:
                arguments = f"follow {state.id} {state.offsets['1']} {state.offsets['2']}"
                await stream.open(handle, arguments, user=_OWNER, envs={}, disposable=True)
            else:
                await self._begin(handle, stream, state.spec)

        verb = "follow_command" if state.begun else "start_command"
        await self._transport.call_sandbox(verb, engine_id, begin, idempotent=True, attempts=1)

    async def _begin(self, handle: SandboxHandle, stream: RelayStream, spec: CommandSpec) -> None:
        path = get_spec_path(spec.id)
        if not handle.python:
            await handle.sandbox.files.write(path, spec.command, user=spec.user)
            envs = {**spec.envs, "SANDYARD_CWD": spec.cwd or "", "SANDYARD_TIMEOUT": str(spec.timeout_s or 0)}
            await stream.open(handle, f"start {spec.id} {path}", user=spec.user, envs=envs)
            return
        encoded = base64.b64encode(spec.encode()).decode()
        if len(encoded) <= SPEC_INLINE:
            await stream.open(handle, "start", user=spec.user, envs={"SANDYARD_SPEC": encoded})
        else:
            await handle.sandbox.files.write(path, spec.encode(), user=spec.user)
            await stream.open(handle, f"start {path}", user=spec.user, envs={})

    async def _call_relay(self, engine_id: str, verb: str, *command_ids: str) -> bool:
        for command_id in command_ids:
            _check_id(command_id)

        stream: RelayStream | None = None

        async def ask(handle: SandboxHandle) -> bool:
            try:
                async with asyncio.timeout(ASK_S):
                    return await answer(handle)
            except TimeoutError:
                raise (
                    ProcessesFullError() if stream is not None and stream.lacks_processes else SandboxUnreachableError()
                ) from None

        async def answer(handle: SandboxHandle) -> bool:
            nonlocal stream
            for _ in range(3):  # it may have no python3, or its relay may be gone
                stream = RelayStream(self._transport, self._silence)
                await stream.open(handle, f"{verb} {' '.join(command_ids)}", user=_OWNER, envs={})
                try:
                    async for frame in stream.frames():
                        if frame.kind == "r":
                            return frame.rest == "yes"
                finally:
                    self._finish(stream, patience_s=1.0)
            raise EngineError(_NO_RELAY)

        return await self._transport.call_sandbox(f"{verb}_command", engine_id, ask, idempotent=True, attempts=2)

    def _finish(self, stream: RelayStream, *, patience_s: float) -> None:
        task = asyncio.get_running_loop().create_task(stream.close(patience_s=patience_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _ReadState:
    """The position of one reader in the output of a command."""

    def __init__(
        self,
        command_id: str,
        spec: CommandSpec | None,
        out: int = 0,
        err: int = 0,
        *,
        max_output_bytes: int = _UNLIMITED,
    ) -> None:
        self.id = command_id
        self._max_output_bytes = max_output_bytes
        self.spec = spec
        self.offsets = {"1": out, "2": err}
        self.begun = spec is None
        self.ended = False
        self._announced = spec is None

    def finish_lost(self) -> list[Event]:
        self.begun = self.ended = True
        return [*self._announce(None), CommandEnded(EndReason.LOST)]

    def add(self, number: str, offset: int, data: bytes) -> list[Event]:
        """Add output of a stream, parts of which may be known already."""
        known = self.offsets[number]
        fresh = data[known - offset :] if offset < known else data
        if not fresh:
            return []
        self.offsets[number] = offset + len(data)
        return [*self._announce(None), CommandOutput(_STREAMS[number], max(known, offset), fresh)]

    def has_enough(self, number: str) -> bool:
        """Return whether the reader wants no more of this stream."""
        return self.offsets[number] > self._max_output_bytes

    def events(self, frame: Frame) -> list[Event]:
        """Return the events of a line. Raises the relay's refusals, and ValueError for lines that no relay would send."""
        found: list[Event] = []
        if frame.kind == "s":
            self.begun = True
            found += self._announce(parse_number(frame.rest))
        elif frame.kind == "x":
            self.begun = True
        elif frame.kind in _STREAMS:
            found += self.add(frame.kind, *frame.chunk)
        elif frame.kind == "e":
            ended = CommandEnded.parse(frame.rest)
            if ended.reason is not EndReason.NOT_STARTED:
                found += self._announce(None)
            found.append(ended)
            self.ended = True
        elif frame.kind == "f":
            raise self._refusal(*frame.refusal)
        return found

    def may_retry(self, error: EngineError, failures: int, away_s: float, patience_s: float) -> bool:
        """Return whether to retry after this error and `failures` earlier ones, with the engine unavailable for `away_s`.

        Waiting for a sandbox to be resumed makes sense only for a command that runs in it.
        """
        if isinstance(error, SandboxNotRunningError):
            return self.begun and failures < PAUSED_RETRIES
        return error.transient and away_s <= (patience_s if self.begun else min(patience_s, START_PATIENCE_S))

    def check_silence(self, times: int) -> None:
        """Raise EngineError if the relay's output has ended without a result too many times in a row."""
        if times > SILENT_RUNS:
            raise EngineError(_NO_RELAY)

    def _announce(self, pid: int | None) -> list[Event]:
        if self._announced:
            return []
        self._announced = True
        return [CommandStarted(pid)]

    def _refusal(self, word: str, reason: str) -> Exception:
        if word == "full":
            return NotEnoughSpaceError()
        if word == "processes":
            return ProcessesFullError(unsent=True)
        if word == "cwd" and self.spec is not None:
            return InvalidInputError(f"The command cannot run in the directory {self.spec.cwd!r}: {reason}.")
        return EngineError(f"The sandbox could not start the command: {reason}.")


def _check_id(command_id: str) -> None:
    if not _ID.fullmatch(command_id):
        raise InvalidInputError(f"{command_id!r} is not a valid command id.")


def _check_spec(spec: CommandSpec) -> None:
    _check_id(spec.id)
    for name, value in spec.envs.items():
        if not name or "=" in name:
            raise InvalidInputError(f"{name!r} is not a valid environment variable name.")
        if "\0" in name + value:
            raise InvalidInputError(f"The environment variable {name!r} contains a NUL character.")
    if "\0" in spec.command or "\0" in (spec.cwd or ""):
        raise InvalidInputError("A command and its directory must not contain NUL characters.")
    try:
        spec.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("The command is not valid Unicode: it contains a lone surrogate.") from None
