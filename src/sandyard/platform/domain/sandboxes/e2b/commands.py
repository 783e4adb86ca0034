"""Commands that outlive whoever started them: run under the relay, read from its journal at any byte."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineError,
    NotEnoughSpaceError,
    SandboxNotRunningError,
    SandboxUnreachableError,
)
from sandyard.platform.domain.sandboxes.e2b.gate import Gate, Handle
from sandyard.platform.domain.sandboxes.e2b.relay import (
    SILENCE_S,
    SPEC_INLINE,
    CommandSpec,
    Ended,
    EndReason,
    Frame,
    Output,
    RelayStream,
    Started,
    Stream,
    bounded,
    spec_path,
)

log = get_logger(__name__)

PATIENCE_S = 300.0
"""How long an engine may be away before whoever follows a command is told."""
START_PATIENCE_S = 15.0
"""The same for a command that is not known to have begun."""
SILENT_RUNS = 5
_NO_RELAY = "The sandbox cannot run the platform's relay: look whether /bin/bash works in it."
ASK_S = 10.0
"""How long a sandbox may think about a question that takes it milliseconds."""
_PAUSES = (0.1, 0.4, 1.0, 2.0, 3.0)
_STREAMS = {"1": Stream.STDOUT, "2": Stream.STDERR}
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OWNER = "root"  # may read, end and remove what any user of the sandbox has started

Event = Started | Output | Ended


class Commands:
    """`start` and `follow` go on through breaks: when the stream is cut (the engine restarts, the sandbox is paused
    and resumed) they read on from the journal at the next byte, so that nothing is lost or told twice. While the
    sandbox is paused they wait and do not wake it. SandboxNotFoundError: it is gone, and with it the command."""

    def __init__(self, gate: Gate, *, patience_s: float = PATIENCE_S, silence_s: float = SILENCE_S) -> None:
        self._gate = gate
        self._patience = patience_s
        self._silence = silence_s
        self._closing: set[asyncio.Task[None]] = set()

    def start(self, engine_id: str, spec: CommandSpec) -> AsyncIterator[Event]:
        """Run it, at most once for its id: started again, it is followed from its beginning. Started (unless it never
        could), then Output, then Ended. Not reading on lets the command run."""
        _check(spec)
        return self._events(engine_id, _Course(spec.id, spec))

    def follow(
        self, engine_id: str, command_id: str, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncIterator[Output | Ended]:
        """From these bytes on until it has ended, also when it has ended long ago. Ended(NOT_STARTED) when the
        sandbox knows nothing of it; it may still be started then, unless it was claimed."""
        _check_id(command_id)
        return self._followed(engine_id, _Course(command_id, None, stdout_offset, stderr_offset))

    async def claim(self, engine_id: str, command_id: str) -> bool:
        """Make sure that it never starts, if it has not. False: it has, or was claimed before."""
        return await self._ask(engine_id, "claim", command_id)

    async def kill(self, engine_id: str, command_id: str) -> bool:
        """SIGTERM to it and its children, SIGKILL 3 s later; whoever follows it sees the end. False: it does not run."""
        return await self._ask(engine_id, "kill", command_id)

    async def forget(self, engine_id: str, *command_ids: str) -> None:
        """Remove their journals. Idempotent. From then on their ids could be started again."""
        await self._ask(engine_id, "forget", *command_ids)

    async def close(self) -> None:
        await end_tasks(*self._closing)

    async def _followed(self, engine_id: str, course: _Course) -> AsyncIterator[Output | Ended]:
        events = self._events(engine_id, course)
        try:
            async for event in events:
                if not isinstance(event, Started):
                    yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined] # it is a generator

    async def _events(self, engine_id: str, course: _Course) -> AsyncIterator[Event]:
        now = asyncio.get_running_loop().time
        contact, failures = now(), 0
        while not course.ended:
            stream = RelayStream(self._gate.config.api_key, self._silence)
            try:
                await self._open(engine_id, course, stream)
                async for frame in stream.frames():
                    contact, failures = now(), 0
                    for event in course.events(frame):
                        yield event
                    if course.ended or frame.kind in "ain":
                        break
                else:
                    failures += 1
                    course.fell_silent(failures)
                    log.info("command_stream_ended", sandbox=engine_id, command=course.id)
            except EngineError as error:
                if isinstance(error, SandboxNotRunningError):
                    contact = now()
                if not course.may_go_on(error, now() - contact, self._patience):
                    raise
                failures += 1
                log.info("command_stream_broken", sandbox=engine_id, command=course.id, reason=error.message)
            finally:
                self._finish(stream, patience_s=1.0 if course.ended else 0.0)
            if failures:
                await self._gate.clock.sleep(_PAUSES[min(failures, len(_PAUSES)) - 1])

    async def _open(self, engine_id: str, course: _Course, stream: RelayStream) -> None:
        async def begin(handle: Handle) -> None:
            if course.spec is None or course.begun:
                arguments = f"follow {course.id} {course.offsets['1']} {course.offsets['2']}"
                await stream.open(handle, arguments, user=_OWNER, envs={}, disposable=True)
            else:
                await self._begin(handle, stream, course.spec)

        verb = "follow_command" if course.begun else "start_command"
        await self._gate.inside(verb, engine_id, begin, idempotent=True, attempts=1)

    async def _begin(self, handle: Handle, stream: RelayStream, spec: CommandSpec) -> None:
        path = spec_path(spec.id)
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

    async def _ask(self, engine_id: str, verb: str, *command_ids: str) -> bool:
        for command_id in command_ids:
            _check_id(command_id)

        async def ask(handle: Handle) -> bool:
            try:
                async with asyncio.timeout(ASK_S):
                    return await answer(handle)
            except TimeoutError:
                raise SandboxUnreachableError from None

        async def answer(handle: Handle) -> bool:
            for _ in range(3):  # it may have no python3, or not the relay any more
                stream = RelayStream(self._gate.config.api_key, self._silence)
                await stream.open(handle, f"{verb} {' '.join(command_ids)}", user=_OWNER, envs={})
                try:
                    async for frame in stream.frames():
                        if frame.kind == "r":
                            return frame.rest == "yes"
                finally:
                    self._finish(stream, patience_s=1.0)
            raise EngineError(_NO_RELAY)

        return await self._gate.inside(f"{verb}_command", engine_id, ask, idempotent=True, attempts=2)

    def _finish(self, stream: RelayStream, *, patience_s: float) -> None:
        task = asyncio.get_running_loop().create_task(stream.finish(patience_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Course:
    """How far one reader of a command has come."""

    def __init__(self, command_id: str, spec: CommandSpec | None, out: int = 0, err: int = 0) -> None:
        self.id = command_id
        self.spec = spec
        self.offsets = {"1": out, "2": err}
        self.begun = spec is None
        self.ended = False
        self._announced = spec is None

    def events(self, frame: Frame) -> list[Event]:
        """What a line means to the reader. Raises what it refuses. What no relay says ends in LOST: whatever says it, this
        command is out of our hands."""
        try:
            return self._events(frame)
        except (ValueError, OverflowError):
            self.begun = self.ended = True
            return [*self._announce(None), Ended(EndReason.LOST)]

    def _events(self, frame: Frame) -> list[Event]:
        found: list[Event] = []
        if frame.kind == "s":
            self.begun = True
            found += self._announce(bounded(frame.rest))
        elif frame.kind == "x":
            self.begun = True
        elif frame.kind in _STREAMS:
            offset, data = frame.chunk
            known = self.offsets[frame.kind]
            fresh = data[max(0, known - offset) :]
            if fresh:
                found += self._announce(None)
                found.append(Output(_STREAMS[frame.kind], max(known, offset), fresh))
                self.offsets[frame.kind] = offset + len(data)
        elif frame.kind == "e":
            ended = Ended.parse(frame.rest)
            if ended.reason is not EndReason.NOT_STARTED:
                found += self._announce(None)
            found.append(ended)
            self.ended = True
        elif frame.kind == "f":
            raise self._refusal(*frame.refusal)
        return found

    def may_go_on(self, error: EngineError, away_s: float, patience_s: float) -> bool:
        """Whether to try again after this, with the engine out of reach for so long. To wait for a sandbox to be
        resumed makes sense only for what runs in it."""
        if isinstance(error, SandboxNotRunningError):
            return self.begun
        return error.transient and away_s <= (patience_s if self.begun else min(patience_s, START_PATIENCE_S))

    def fell_silent(self, times: int) -> None:
        """The relay's output ended, and nothing more was said, so many times in a row."""
        if times > SILENT_RUNS:
            raise EngineError(_NO_RELAY)

    def _announce(self, pid: int | None) -> list[Event]:
        if self._announced:
            return []
        self._announced = True
        return [Started(pid)]

    def _refusal(self, word: str, said: str) -> Exception:
        if word == "full":
            return NotEnoughSpaceError()
        if word == "cwd" and self.spec is not None:
            return InvalidInputError(f"The command cannot run in the directory {self.spec.cwd!r}: {said}.")
        return EngineError(f"The sandbox could not start the command: {said}.")


def _check_id(command_id: str) -> None:
    if not _ID.fullmatch(command_id):
        raise InvalidInputError(f"{command_id!r} is not the id of a command.")


def _check(spec: CommandSpec) -> None:
    _check_id(spec.id)
    for name, value in spec.envs.items():
        if not name or "=" in name:
            raise InvalidInputError(f"{name!r} is not the name of an environment variable.")
        if "\0" in name + value:
            raise InvalidInputError(f"The environment variable {name!r} contains a zero byte.")
    if "\0" in spec.command or "\0" in (spec.cwd or ""):
        raise InvalidInputError("A command and its directory may not contain a zero byte.")
    try:
        spec.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("The command is not valid Unicode: it contains half of a surrogate pair.") from None
