"""Commands under the relay, in sandboxes of a real engine: complete output and the actual end."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.sandboxes.e2b import (
    CommandEnded,
    CommandOutput,
    Commands,
    CommandSpec,
    CommandStarted,
    EndReason,
    EngineConfig,
    EngineInvalidError,
    EngineSandbox,
    SandboxEngine,
    SandboxNotFoundError,
    Stream,
)
from sandyard.platform.domain.sandboxes.e2b.guest.relay.output import CHUNK
from tests.harness.engine import Engine
from tests.integration.platform.domain.sandboxes.e2b.conftest import NewSandbox
from tests.unit.platform.domain.sandboxes.e2b.command_reader import Seen, run, spec, until

LINES = 40
COUNTING = f"for i in $(seq {LINES}); do echo line $i; echo error $i >&2; sleep 0.05; done; exit 7"
COUNTED = "".join(f"line {number}\n" for number in range(1, LINES + 1)).encode()
COUNTED_ERRORS = COUNTED.replace(b"line", b"error")


def expect_counted(seen: Seen) -> None:
    assert bytes(seen.stdout) == COUNTED
    assert bytes(seen.stderr) == COUNTED_ERRORS
    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.code) == (EndReason.EXITED, 7)
    assert (seen.ended.stdout_bytes, seen.ended.stderr_bytes) == (len(COUNTED), len(COUNTED_ERRORS))


async def follow(engine: SandboxEngine, sandbox_id: str, command_id: str, seen: Seen | None = None) -> Seen:
    seen = seen or Seen()
    return await seen.read(engine.commands.follow(sandbox_id, command_id, len(seen.stdout), len(seen.stderr)))


async def no_process_matches(engine: SandboxEngine, sandbox_id: str, marker: str) -> bool:
    """Return whether no process has the marker in its command line."""
    found = await run(engine, sandbox_id, f"pgrep -f '[{marker[0]}]{marker[1:]}' -l | grep -v bash", user="root")
    return not found.stdout


# input and output ---------------------------------------------------------------------------------------------------


async def test_output_exit_code_and_duration(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    seen = await run(engine, sandbox.id, "echo to out; echo to err >&2; sleep 0.2; exit 42")
    assert seen.started is not None
    assert seen.started.pid is not None
    assert (bytes(seen.stdout), bytes(seen.stderr)) == (b"to out\n", b"to err\n")
    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.code, seen.ended.signal) == (EndReason.EXITED, 42, None)
    assert seen.ended.duration_s is not None
    assert 0.2 <= seen.ended.duration_s < 20


async def test_directory_variables_user_and_a_clean_environment(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    odd = {"ODD": "a 'b' \"c\" $d `e` \\ \n é=🙂", "EMPTY": ""}
    seen = await run(
        engine, sandbox.id, 'printf "%s|" "$ODD" "${EMPTY-unset}" "$PWD" "$USER"', cwd="/var/tmp", envs=odd
    )
    assert seen.stdout.decode() == f"{odd['ODD']}||/var/tmp|user|"
    assert (await run(engine, sandbox.id, "id -un; pwd", user="root")).stdout == b"root\n/root\n"
    assert (await run(engine, sandbox.id, "id -un; pwd")).stdout == b"user\n/home/user\n"
    assert b"SANDYARD" not in (await run(engine, sandbox.id, "env")).stdout
    assert (await run(engine, sandbox.id, "cat; echo end")).stdout == b"end\n", "standard input is empty"
    assert (await run(engine, sandbox.id, "ls -l /proc/self/fd | grep -c sandyard")).stdout == b"0\n"
    assert (await run(engine, sandbox.id, "yes | head -1; echo ${PIPESTATUS[0]}")).stdout == b"y\n141\n"


async def test_binary_output_on_both_streams(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    program = (
        "import os\nfor n in (1, 2): os.write(n, bytes(range(256)) * 3)\nos.write(2, b'\\xff\\n:e {}\\n:1 0 AAAA')"
    )
    seen = await run(engine, sandbox.id, f'python3 -c "{program}"')
    assert seen.stdout == bytes(range(256)) * 3
    assert seen.stderr == bytes(range(256)) * 3 + b"\xff\n:e {}\n:1 0 AAAA"

    seen = await run(
        engine, sandbox.id, "head -c 5000000 /dev/urandom | tee /tmp/1; head -c 3000000 /dev/urandom | tee /tmp/2 >&2"
    )
    sums = (await run(engine, sandbox.id, "md5sum < /tmp/1; md5sum < /tmp/2")).stdout.decode().split()
    assert [hashlib.md5(whole).hexdigest() for whole in (seen.stdout, seen.stderr)] == [sums[0], sums[2]]


async def test_output_arrives_while_the_command_runs(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    given = spec("echo first; until [ -e /tmp/go ]; do sleep 0.02; done; echo second")
    events = engine.commands.start(sandbox.id, given)
    seen = Seen()
    async for event in events:
        seen.add(event)
        if seen.stdout == b"first\n" and seen.ended is None:
            await run(engine, sandbox.id, "touch /tmp/go")
    assert seen.stdout == b"first\nsecond\n"


async def test_a_command_that_is_killed_reports_the_signal(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
        ended = (await run(engine, sandbox.id, f"kill -{number.value} $$")).ended
        assert ended is not None
        assert (ended.reason, ended.code, ended.signal) == (EndReason.EXITED, None, number.value)


async def test_a_command_of_a_megabyte_of_unicode_text_runs(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    line = "äöü — 日本語 🙂 'quoted' $HOME `x` \\n\n"
    text = line * 25000
    seen = await run(engine, sandbox.id, f"cat <<'END'\n{text}END\necho $0; exit 5", cwd="/tmp")
    assert seen.stdout.decode() == f"{text}{seen.stdout.decode()[len(text) :]}"
    assert seen.ended is not None
    assert seen.ended.code == 5
    seen = await run(engine, sandbox.id, f"cat <<'END'\n{line * 50}END")
    assert seen.stdout.decode() == line * 50
    assert (await run(engine, sandbox.id, "ls -A /tmp/.sandyard | grep -c spec")).stdout == b"0\n"


async def test_a_timeout_ends_the_command_and_its_children(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    seen = await run(engine, sandbox.id, "echo begun; sleep 987 & sleep 987", timeout_s=0.5)
    assert seen.stdout == b"begun\n"
    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.signal) == (EndReason.TIMED_OUT, signal.SIGTERM)
    assert await no_process_matches(engine, sandbox.id, "sleep 987")


async def test_a_command_that_ignores_sigterm_is_killed(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    seen = await run(engine, sandbox.id, "trap '' TERM; sleep 986 & while true; do sleep 0.1; done", timeout_s=0.2)
    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.signal) == (EndReason.TIMED_OUT, signal.SIGKILL)
    assert await no_process_matches(engine, sandbox.id, "sleep 986")


async def test_kill_ends_the_command_and_its_children(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    given = spec("echo begun; trap 'echo cleaned; exit 9' TERM; sleep 985 & wait")
    seen = Seen()
    async for event in engine.commands.start(sandbox.id, given):
        seen.add(event)
        if isinstance(event, CommandOutput) and event.data == b"begun\n":
            assert await engine.commands.kill(sandbox.id, given.id) is True
    assert seen.stdout == b"begun\ncleaned\n"
    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.code) == (EndReason.KILLED, 9)
    assert await no_process_matches(engine, sandbox.id, "sleep 985")
    assert await engine.commands.kill(sandbox.id, given.id) is False
    assert await engine.commands.kill(sandbox.id, "cmd_unknown") is False


async def test_a_background_child_does_not_delay_the_command_and_keeps_running(
    engine: SandboxEngine, sandbox: EngineSandbox
) -> None:
    server = "(while true; do echo tick; sleep 0.05; echo x >> /tmp/ticks; done) & echo up"
    async with asyncio.timeout(20):
        seen = await run(engine, sandbox.id, server)
        assert b"up\n" in seen.stdout
        quiet = await run(engine, sandbox.id, "sleep 984 & echo up")
    assert quiet.stdout == b"up\n"
    assert quiet.ended is not None
    assert (quiet.ended.code, quiet.ended.duration_s is not None and quiet.ended.duration_s < 10) == (0, True)

    async def count_ticks() -> int:
        return int((await run(engine, sandbox.id, "wc -l < /tmp/ticks")).stdout)

    before = await count_ticks()

    async def keeps_running() -> bool:
        return await count_ticks() > before + 3

    await until(keeps_running)


async def test_invalid_input_is_rejected_with_a_message(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    with pytest.raises(InvalidInputError, match="'/no/where'"):
        await run(engine, sandbox.id, "true", cwd="/no/where")
    with pytest.raises(InvalidInputError, match="NUL character"):
        await run(engine, sandbox.id, "a\0b")
    with pytest.raises(InvalidInputError, match="surrogate"):
        await run(engine, sandbox.id, "echo \ud800")
    with pytest.raises(InvalidInputError, match="'A=B'"):
        await run(engine, sandbox.id, "true", envs={"A=B": "x"})
    with pytest.raises(InvalidInputError, match="not a valid command id"):
        await run(engine, sandbox.id, CommandSpec(id="../x", command="true"))
    with pytest.raises(EngineInvalidError, match="no user"):
        await run(engine, sandbox.id, "true", user="nobody-knows")


# started once, or never ---------------------------------------------------------------------------------------------


async def test_a_command_started_twice_runs_once(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    given = spec("echo run >> /tmp/runs; sleep 0.3; echo done")
    seen = await asyncio.gather(*(run(engine, sandbox.id, given) for _ in range(4)))
    seen.append(await run(engine, sandbox.id, given))
    assert {bytes(item.stdout) for item in seen} == {b"done\n"}
    assert {candidate.ended.code for candidate in seen if candidate.ended} == {0}
    assert sorted(candidate.started.pid is not None for candidate in seen if candidate.started) == [False] * 4 + [True]
    assert (await run(engine, sandbox.id, "cat /tmp/runs")).stdout == b"run\n"


async def test_a_claimed_command_never_starts(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    given = spec("echo run >> /tmp/runs")
    assert await engine.commands.claim(sandbox.id, given.id) is True
    assert await engine.commands.claim(sandbox.id, given.id) is False
    for user in (None, "root"):
        seen = await run(engine, sandbox.id, CommandSpec(given.id, given.command, user=user))
        assert seen.started is None
        assert seen.ended == CommandEnded(EndReason.NOT_STARTED)
    assert (await run(engine, sandbox.id, "cat /tmp/runs")).stdout == b""
    started = spec("true")
    await run(engine, sandbox.id, started)
    assert await engine.commands.claim(sandbox.id, started.id) is False


async def test_unknown_and_forgotten_commands_are_reported_as_not_started(
    engine: SandboxEngine, sandbox: EngineSandbox
) -> None:
    assert (await follow(engine, sandbox.id, "cmd_unknown")).ended == CommandEnded(EndReason.NOT_STARTED)
    given = spec("echo x")
    await run(engine, sandbox.id, given)
    assert (await follow(engine, sandbox.id, given.id)).stdout == b"x\n"
    await engine.commands.forget(sandbox.id, given.id)
    await engine.commands.forget(sandbox.id, given.id)
    assert (await follow(engine, sandbox.id, given.id)).ended == CommandEnded(EndReason.NOT_STARTED)
    assert (await run(engine, sandbox.id, "ls /tmp/.sandyard/commands | wc -l")).stdout == b"1\n", (
        "only the current command has a journal"
    )


# crashes, interruptions and pauses ----------------------------------------------------------------------------------


async def read_until(
    events: AsyncIterator[CommandStarted | CommandOutput | CommandEnded], seen: Seen, size: int
) -> None:
    """Read until there is that much output, then stop like a platform that dies: without closing anything."""
    async for event in events:
        seen.add(event)
        if len(seen.stdout) >= size:
            break
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_later_platform_continues_at_the_next_byte(
    engine: SandboxEngine, sandbox: EngineSandbox, config: EngineConfig
) -> None:
    given, seen = spec(COUNTING), Seen()
    await read_until(engine.commands.start(sandbox.id, given), seen, 100)
    assert seen.ended is None
    for size in (200, 300):
        later = SandboxEngine(config)
        offsets = len(seen.stdout), len(seen.stderr)
        await read_until(later.commands.follow(sandbox.id, given.id, *offsets), seen, size)
        await later.close()
    expect_counted(await follow(engine, sandbox.id, given.id, seen))
    whole = await follow(SandboxEngine(config), sandbox.id, given.id)
    expect_counted(whole)
    assert seen.ended == whole.ended


async def test_a_finished_command_can_be_read_from_any_offset(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    given = spec("head -c 200000 /dev/urandom")
    content = bytes((await run(engine, sandbox.id, given)).stdout)
    for offset in (0, 1, 49151, 49152, 199999, 200000):
        events = [event async for event in engine.commands.follow(sandbox.id, given.id, offset, 0)]
        assert b"".join(event.data for event in events if isinstance(event, CommandOutput)) == content[offset:]
        assert isinstance(events[-1], CommandEnded)


async def test_output_is_complete_after_an_engine_restart(
    engine: SandboxEngine, sandbox: EngineSandbox, engine_process: Engine
) -> None:
    seen = Seen()
    task = asyncio.create_task(seen.read(engine.commands.start(sandbox.id, spec(COUNTING))))
    await until(lambda: len(seen.stdout) > 30)
    await asyncio.to_thread(engine_process.kill)
    await asyncio.to_thread(engine_process.start)
    expect_counted(await asyncio.wait_for(task, 60))


async def test_output_is_complete_after_a_pause(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    seen = Seen()
    task = asyncio.create_task(seen.read(engine.commands.start(sandbox.id, spec(COUNTING, timeout_s=30))))
    await until(lambda: len(seen.stdout) > 30)
    await engine.pause(sandbox.id)
    before = len(seen.stdout)
    await asyncio.sleep(1)  # time for anything that might resume it
    assert (await engine.get_info(sandbox.id)).state == "paused"
    assert not task.done()
    assert len(seen.stdout) - before < len(COUNTED)
    await engine.resume(sandbox.id, 300)
    expect_counted(await asyncio.wait_for(task, 60))


@pytest.mark.slow  # waits for seven seconds
async def test_paused_time_does_not_count_toward_the_timeout(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    seen = Seen()
    given = spec("echo begun; sleep 1; echo done", timeout_s=6)
    task = asyncio.create_task(seen.read(engine.commands.start(sandbox.id, given)))
    await until(lambda: seen.stdout == b"begun\n")
    await engine.pause(sandbox.id)
    await asyncio.sleep(7)
    await engine.resume(sandbox.id, 300)
    await asyncio.wait_for(task, 60)
    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.code) == (EndReason.EXITED, 0)
    assert seen.ended.duration_s is not None
    assert seen.ended.duration_s < 6


async def test_destroying_the_sandbox_ends_the_command(engine: SandboxEngine, new_sandbox: NewSandbox) -> None:
    sandbox = await new_sandbox()
    seen = Seen()
    task = asyncio.create_task(seen.read(engine.commands.start(sandbox.id, spec("echo begun; sleep 600"))))
    await until(lambda: seen.stdout == b"begun\n")
    await engine.kill(sandbox.id)
    with pytest.raises(SandboxNotFoundError):
        await asyncio.wait_for(task, 30)
    with pytest.raises(SandboxNotFoundError):
        await follow(engine, sandbox.id, "cmd_x")


async def test_a_command_is_lost_when_its_relay_is_killed(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    given, seen = spec("echo begun; sleep 600"), Seen()
    task = asyncio.create_task(seen.read(engine.commands.start(sandbox.id, given)))
    await until(lambda: seen.stdout == b"begun\n")
    await run(engine, sandbox.id, f"kill -9 $(cat /tmp/.sandyard/commands/{given.id}/lock)")
    await asyncio.wait_for(task, 30)
    assert seen.ended == CommandEnded(EndReason.LOST)


async def test_a_silent_stream_is_replaced(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    impatient = Commands(engine.transport, engine.files, silence_s=0.5)
    seen = await Seen().read(impatient.start(sandbox.id, spec("echo one; sleep 1.2; echo two; sleep 0.8; echo three")))
    await impatient.close()
    assert seen.stdout == b"one\ntwo\nthree\n"
    assert seen.ended is not None
    assert seen.ended.code == 0

    async def no_follower_is_left() -> bool:
        return await no_process_matches(engine, sandbox.id, "main.py [0-9a-z]* follow")

    await until(no_follower_is_left)


async def test_an_outdated_access_token_is_renewed(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    detail = await engine.transport.get_detail(sandbox.id)
    detail.envd_access_token = "stale"
    engine.transport.remember(engine.transport.build_sandbox(detail))
    assert (await run(engine, sandbox.id, "echo fine")).stdout == b"fine\n"


async def test_a_slow_reader_does_not_block_the_command_and_gets_everything(
    engine: SandboxEngine, sandbox: EngineSandbox
) -> None:
    given = spec("head -c 20000000 /dev/zero | tr '\\0' x; touch /tmp/finished; echo end >&2")
    events = engine.commands.start(sandbox.id, given)
    assert isinstance(await anext(events), CommandStarted)

    async def is_finished() -> bool:
        return b"finished" in (await run(engine, sandbox.id, "ls /tmp/")).stdout

    await until(is_finished)
    total = 0
    async for event in events:
        if isinstance(event, CommandOutput) and event.stream == "stdout":
            assert event.offset == total
            total += len(event.data)
    assert total == 20000000


# large output, which is fetched from the journal --------------------------------------------------------------------

LARGE = 40_000_000
FLOOD = f"head -c {LARGE} /dev/urandom | tee /tmp/1; head -c 2000000 /dev/urandom | tee /tmp/2 >&2; exit 7"


@dataclass
class OutputChecksums:
    """Checksums of the received output, and how much of it came in large pieces."""

    out: Any = field(default_factory=hashlib.sha256)
    err: Any = field(default_factory=hashlib.sha256)
    sizes: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(Stream, 0))
    fetched: int = 0
    ended: CommandEnded | None = None

    def add(self, event: CommandStarted | CommandOutput | CommandEnded) -> None:
        assert self.ended is None
        if isinstance(event, CommandOutput):
            assert event.offset == self.sizes[event.stream], "output is neither lost nor repeated"
            self.sizes[event.stream] += len(event.data)
            (self.out if event.stream is Stream.STDOUT else self.err).update(event.data)
            if len(event.data) > CHUNK:
                self.fetched += len(event.data)
        elif isinstance(event, CommandEnded):
            self.ended = event

    async def check(self, engine: SandboxEngine, sandbox_id: str) -> None:
        assert self.ended is not None
        assert (self.ended.reason, self.ended.code) == (EndReason.EXITED, 7)
        assert (self.ended.stdout_bytes, self.ended.stderr_bytes) == (LARGE, 2_000_000) == tuple(self.sizes.values())
        sums = (await run(engine, sandbox_id, "sha256sum < /tmp/1; sha256sum < /tmp/2")).stdout.decode().split()
        assert [self.out.hexdigest(), self.err.hexdigest()] == [sums[0], sums[2]]
        assert self.fetched > 0.9 * LARGE


async def test_large_output_is_fetched_completely(
    engine: SandboxEngine, sandbox: EngineSandbox, config: EngineConfig
) -> None:
    given, seen = spec(FLOOD), OutputChecksums()
    events = engine.commands.start(sandbox.id, given)
    async for event in events:
        seen.add(event)
        if seen.fetched > LARGE / 4:
            break
    await events.aclose()  # type: ignore[attr-defined] # like a platform that dies in the middle
    later = SandboxEngine(config)
    async for event in later.commands.follow(sandbox.id, given.id, *seen.sizes.values()):
        seen.add(event)
    await later.close()
    await seen.check(engine, sandbox.id)
    whole = OutputChecksums()
    async for event in engine.commands.follow(sandbox.id, given.id):
        whole.add(event)
    await whole.check(engine, sandbox.id)


async def test_fetching_survives_an_engine_restart(
    engine: SandboxEngine, sandbox: EngineSandbox, engine_process: Engine
) -> None:
    seen, killed = OutputChecksums(), False
    async with asyncio.timeout(60):
        async for event in engine.commands.start(sandbox.id, spec(FLOOD.replace("exit", "touch /tmp/full; exit"))):
            seen.add(event)
            if seen.fetched and not killed:
                killed = True
                await until(lambda: has_file(engine, sandbox.id, "/tmp/full"))
                await asyncio.to_thread(engine_process.kill)
                await asyncio.to_thread(engine_process.start)
    assert killed
    await seen.check(engine, sandbox.id)


async def test_fetching_survives_a_pause(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    seen, paused = OutputChecksums(), False
    async with asyncio.timeout(60):
        async for event in engine.commands.start(sandbox.id, spec(FLOOD)):
            seen.add(event)
            if seen.fetched and not paused:
                paused = True
                await engine.pause(sandbox.id)
                await engine.resume(sandbox.id, 300)
    assert paused
    await seen.check(engine, sandbox.id)


async def has_file(engine: SandboxEngine, sandbox_id: str, path: str) -> bool:
    return bool((await run(engine, sandbox_id, f"ls {path}")).stdout)


FAKE_RELAY = """import os, sys
say = lambda line: os.write(1, line.encode() + b"\\n")
say("\\n:: " + sys.argv[1])
folder = "/tmp/.sandyard/commands/ID"
os.makedirs(folder, exist_ok=True)
say(":s 1")
SAY
"""
HUGE = "os.truncate(os.open(folder + '/out', os.O_CREAT | os.O_RDWR), 1 << 42); "
SHORT = "open(folder + '/out', 'w').write('short'); "


@pytest.mark.parametrize(
    ("statement", "reasons"),
    [
        ("say(':b 1 5000000 0')", {EndReason.LOST}),
        ("say(':b 1 5000000 1')", {EndReason.LOST}),
        ("os.mkfifo(folder + '/out'); say(':b 1 5000000 0')", {EndReason.LOST}),
        ("os.symlink('/dev/zero', folder + '/out'); say(':b 1 5000000 0')", {EndReason.LOST}),
        # the existing part is read, then the real relay is asked, which knows no such command
        (SHORT + "say(':b 1 5000000 0')", {EndReason.LOST, EndReason.NOT_STARTED}),
        (SHORT + "say(':b 1 5 0'); say(':b 1 2 0'); say(':e {\"reason\":\"exited\"}')", {EndReason.EXITED}),
        (HUGE + "say(':b 1 %d 0' % (1 << 42)); say(':e {\"reason\":\"exited\"}')", {EndReason.EXITED}),
        (HUGE + "say(':b 1 5000 0'); say(':e {\"reason\":\"exited\"}')", {EndReason.EXITED}),
        ("while True: say(':h')", {EndReason.LOST}),
    ],
    ids=[
        *("missing", "missing in memory", "a pipe", "a device", "short", "backwards", "huge", "more than announced"),
        "heartbeats without end",
    ],
)
async def test_a_hostile_relay_cannot_exceed_the_limit_with_a_wrong_journal(
    engine: SandboxEngine, sandbox: EngineSandbox, statement: str, reasons: set[EndReason]
) -> None:
    limit = 4 << 20
    given = spec("true")
    await run(engine, sandbox.id, "true")
    program = FAKE_RELAY.replace("ID", given.id).replace("SAY", statement)
    put = f"cat > /tmp/fake <<'EOF'\n{program}\nEOF\nfor f in /tmp/.sandyard/relay-*/main.py; do cp /tmp/fake $f; done"
    await run(engine, sandbox.id, put)
    size = 0
    async with asyncio.timeout(20):
        async for event in engine.commands.start(sandbox.id, given, max_output_bytes=limit):
            if isinstance(event, CommandOutput):
                size += len(event.data)
            elif isinstance(event, CommandEnded):
                assert event.reason in reasons
    assert size <= limit + (2 << 20)


# unusual sandboxes --------------------------------------------------------------------------------------------------


async def test_commands_run_without_python3(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    hide = "for p in $(type -ap python3); do mv $p $p.hidden; done; command -v python3 || echo none"
    assert b"none\n" in (await run(engine, sandbox.id, hide, user="root")).stdout
    engine.transport.drop(sandbox.id)

    seen = await run(
        engine, sandbox.id, 'echo "$ODD"; pwd; echo e >&2; exit 3', cwd="/var/tmp", envs={"ODD": "a 'b' é"}
    )
    assert (seen.stdout.decode(), bytes(seen.stderr)) == ("a 'b' é\n/var/tmp\n", b"e\n")
    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.code) == (EndReason.EXITED, 3)
    assert b"SANDYARD" not in (await run(engine, sandbox.id, "env")).stdout

    given = spec("head -c 300000 /dev/urandom | tee /tmp/1; cat /tmp/1 | md5sum >&2")
    seen = await run(engine, sandbox.id, given)
    assert hashlib.md5(seen.stdout).hexdigest() == seen.stderr.decode().split()[0]
    assert (await run(engine, sandbox.id, given)).stdout == seen.stdout, "a command started twice runs once"
    tail = [event async for event in engine.commands.follow(sandbox.id, given.id, 299990, 0)]
    assert isinstance(tail[0], CommandOutput)
    assert tail[0].data == seen.stdout[299990:]

    late = await run(engine, sandbox.id, "echo begun; sleep 983 & sleep 983", timeout_s=0.5)
    assert late.stdout == b"begun\n"
    assert late.ended is not None
    assert late.ended.reason is EndReason.TIMED_OUT
    assert await no_process_matches(engine, sandbox.id, "sleep 983")

    victim, seen = spec("echo begun; sleep 982"), Seen()
    task = asyncio.create_task(seen.read(engine.commands.start(sandbox.id, victim)))
    await until(lambda: seen.stdout == b"begun\n")
    assert await engine.commands.kill(sandbox.id, victim.id) is True
    await asyncio.wait_for(task, 30)
    assert seen.ended is not None
    assert seen.ended.reason is EndReason.KILLED
    assert await engine.commands.kill(sandbox.id, victim.id) is False

    claimed = spec("true")
    assert await engine.commands.claim(sandbox.id, claimed.id) is True
    assert (await run(engine, sandbox.id, claimed)).ended == CommandEnded(EndReason.NOT_STARTED)
    with pytest.raises(InvalidInputError, match="'/no/where'"):
        await run(engine, sandbox.id, "true", cwd="/no/where")
    long = await run(engine, sandbox.id, "cat <<'END' | wc -c\n" + "x" * 1_000_000 + "\nEND")
    assert long.stdout.strip() == b"1000001"
    await engine.commands.forget(sandbox.id, given.id)
    assert (await follow(engine, sandbox.id, given.id)).ended == CommandEnded(EndReason.NOT_STARTED)


async def test_a_removed_relay_is_restored(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    await run(engine, sandbox.id, "true")
    seen = await run(engine, sandbox.id, "rm -rf /tmp/.sandyard; echo gone; exit 4")
    assert seen.stdout == b"gone\n"
    assert seen.ended is not None
    assert seen.ended.code == 4
    assert (await run(engine, sandbox.id, "echo back")).stdout == b"back\n"


async def test_output_of_a_login_shell_does_not_disturb_a_command(
    engine: SandboxEngine, sandbox: EngineSandbox
) -> None:
    await run(
        engine, sandbox.id, "printf 'printf \":s 1\\\\n:e {\"; echo noise >&2' >> ~/.profile; cat ~/.profile | tail -1"
    )
    seen = await run(engine, sandbox.id, "echo mine; exit 6")
    assert seen.stdout.endswith(b"mine\n")
    assert seen.ended is not None
    assert seen.ended.code == 6


FILL = "for size in 1M 4k 1; do dd if=/dev/zero of=$HOME/filler.$size bs=$size; done 2>/dev/null"


@pytest.mark.parametrize("before", [True, False], ids=["before it started", "while it ran"])
async def test_a_full_disk_loses_no_exit_code_and_can_be_cleaned_up(
    engine: SandboxEngine, sandbox: EngineSandbox, before: bool
) -> None:
    if before:
        await run(engine, sandbox.id, FILL)
    noise = "head -c 20000000 /dev/zero | tr '\\0' x; echo err >&2; echo probe > ~/probe; exit 8"
    given = spec(noise if before else f"echo begun; {FILL}; {noise}")
    async with asyncio.timeout(60):
        seen = await run(engine, sandbox.id, given)
    if b"No space" not in seen.stderr and b"quota" not in seen.stderr:
        pytest.skip("this engine does not limit disks")
    assert len(seen.stdout) == 20000000 + (0 if before else len("begun\n")), (
        "a connected reader gets output that does not fit on the disk"
    )
    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.code) == (EndReason.EXITED, 8)
    assert seen.ended.stdout_bytes == len(seen.stdout)
    later = await follow(engine, sandbox.id, given.id)
    assert later.ended == seen.ended
    assert 0 < len(later.stdout) < len(seen.stdout), "the journal has only the part that fit"
    assert seen.stdout.startswith(later.stdout)

    cleaned = await run(engine, sandbox.id, "rm ~/filler.*; echo cleaned; exit 2")
    assert cleaned.stdout == b"cleaned\n"
    assert cleaned.ended is not None
    assert cleaned.ended.code == 2
    assert (await run(engine, sandbox.id, "echo room > ~/probe && cat ~/probe")).stdout == b"room\n"
