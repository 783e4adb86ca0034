"""The platform's own programs in sandboxes of a real engine: argv in, bytes and the actual exit code out."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator

import pytest

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.sandboxes.e2b import (
    DirectoryMissingError,
    EngineError,
    EngineSandbox,
    ProgramTimeoutError,
    SandboxEngine,
    SandboxNotRunningError,
    programs,
)
from tests.integration.platform.domain.sandboxes.e2b.conftest import NewSandbox
from tests.unit.platform.domain.sandboxes.e2b.command_reader import run, until

ODD = ["", "a b", "-n", "'", '"', "$HOME", "`id`", "\\", "*", "new\nline", "é🙂", os.fsdecode(b"\xff\xfe")]


async def stream_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_arguments_and_output_are_passed_unchanged(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    ran = await engine.programs.run(sandbox.id, ["printf", "%s\\0", *ODD])
    assert (ran.exit_code, ran.stderr, ran.truncated) == (0, "", False)
    assert ran.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in ODD]
    every = bytes(range(256)) * 100
    await engine.files.write(sandbox.id, "/tmp/every", stream_chunks(every))
    assert (await engine.programs.run(sandbox.id, ["cat", "/tmp/every"])).stdout == every


async def test_very_many_arguments_are_passed(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    words = [f"{number:06}-{'x' * 100}" for number in range(10_000)]
    ran = await engine.programs.run(sandbox.id, ["printf", "%s\\n", *words])
    assert ran.stdout.decode().split() == words
    left = await engine.programs.run(sandbox.id, ["bash", "-c", "ls -A /tmp | grep -c argv"])
    assert left.stdout == b"0\n", "the file with the arguments is removed"
    ran = await engine.programs.run(sandbox.id, ["printf", "%s", "x" * 200_000])
    assert (ran.exit_code, ran.stdout) == (126, b"")
    assert "too long" in ran.stderr


async def test_directory_variables_and_user_are_applied(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    envs = {"LC_ALL": "C", "ODD": "a 'b' $c\n\\", "EMPTY": ""}
    script = 'printf "%s|" "$PWD" "$LC_ALL" "$ODD" "${EMPTY-unset}" "$(id -un)"; env | grep -c SANDYARD; cat'
    ran = await engine.programs.run(sandbox.id, ["bash", "-c", script], cwd="/var/tmp", envs=envs)
    assert ran.stdout.decode() == f"/var/tmp|C|{envs['ODD']}||user|0\n"
    with pytest.raises(DirectoryMissingError):
        await engine.programs.run(sandbox.id, ["true"], cwd="/no/such")


@pytest.mark.parametrize("code", [0, 1, 7, 124, 137, 255])
async def test_the_exit_code_of_the_program_is_returned(
    engine: SandboxEngine, sandbox: EngineSandbox, code: int
) -> None:
    ran = await engine.programs.run(sandbox.id, ["bash", "-c", f"echo out; echo why >&2; exit {code}"])
    assert (ran.exit_code, ran.stdout, ran.stderr) == (code, b"out\n", "why\n")


async def test_a_missing_program_is_reported(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    ran = await engine.programs.run(sandbox.id, ["no-such-program"])
    assert ran.exit_code == 127
    assert "no-such-program" in ran.stderr


@pytest.mark.parametrize("bad", [[], ["a\0b"], ["\ud800"]])
async def test_invalid_arguments_are_rejected(engine: SandboxEngine, sandbox: EngineSandbox, bad: list[str]) -> None:
    with pytest.raises(InvalidInputError):
        await engine.programs.run(sandbox.id, bad)
    with pytest.raises(InvalidInputError):
        await engine.programs.run(sandbox.id, ["true"], envs={"A-B": "c"})


async def test_output_is_truncated_at_the_limit(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    ran = await engine.programs.run(sandbox.id, ["head", "-c", "1000", "/dev/zero"], limit=1000)
    assert (ran.exit_code, len(ran.stdout), ran.truncated) == (0, 1000, False)
    ran = await engine.programs.run(sandbox.id, ["yes"], limit=1000)
    assert (ran.exit_code, len(ran.stdout), ran.truncated) == (141, 1000, True)
    ran = await engine.programs.run(
        sandbox.id, ["bash", "-c", "yes complaint | head -c 4000000 >&2; echo the reason >&2; exit 3"]
    )
    assert (ran.exit_code, ran.stderr[-11:]) == (3, "the reason\n")
    assert len(ran.stderr) <= 16 << 10


async def test_output_of_the_shell_profile_is_left_out(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    noise = b"echo noise; echo more >&2; export LC_ALL=de_DE; cd /usr; set -eu; head -c 3000000 /dev/zero | base64\n"
    await engine.files.write(sandbox.id, "/home/user/.bash_profile", stream_chunks(noise))
    ran = await engine.programs.run(
        sandbox.id, ["bash", "-c", 'echo "$LC_ALL"; pwd; echo why >&2'], cwd="/tmp", envs={"LC_ALL": "C"}
    )
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, b"C\n/tmp\n", "why\n")


async def test_a_flooding_sandbox_does_not_fill_the_memory(
    engine: SandboxEngine, sandbox: EngineSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may have replaced every program in it."""
    monkeypatch.setattr(programs, "GRACE_S", 1.0)
    flood = b'base64() { command -p base64 "$@"; [ "$1" = -d ] || command -p yes AAAA; }\n'
    await engine.files.write(sandbox.id, "/home/user/.bash_profile", stream_chunks(flood))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EngineError, match="could not run the platform's program"):
        await engine.programs.run(sandbox.id, ["true"], limit=1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
    await engine.files.write(sandbox.id, "/home/user/.bash_profile", stream_chunks(b"while :; do echo noise; done\n"))
    with pytest.raises(ProgramTimeoutError):
        await asyncio.wait_for(engine.programs.run(sandbox.id, ["true"], timeout_s=1), 30)


@pytest.mark.parametrize(
    ("script", "most"), [("exec yes complaint >&2", 1 << 30), ("while :; do echo x >&2; done", 2000)]
)
async def test_a_program_with_endless_standard_error_is_ended(
    engine: SandboxEngine, sandbox: EngineSandbox, monkeypatch: pytest.MonkeyPatch, script: str, most: int
) -> None:
    monkeypatch.setattr(programs, "MAX_PIECES", most)
    started = time.monotonic()
    with pytest.raises(EngineError, match="wrote more than 4 MiB to its standard error") as caught:
        await engine.programs.run(sandbox.id, ["bash", "-c", f": 4711; {script}"], timeout_s=60, idempotent=True)
    assert not isinstance(caught.value, ProgramTimeoutError)
    assert time.monotonic() - started < 20

    async def is_ended() -> bool:
        return not (await run(engine, sandbox.id, "pgrep -f '[y]es complaint|: [4]711'", user="root")).stdout

    await until(is_ended)


async def test_standard_error_is_made_storable(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    script = r"printf 'a\0b\033[1m\xed\xa0\x80\xff\tc\r\n\303\251' >&2"
    ran = await engine.programs.run(sandbox.id, ["bash", "-c", script])
    assert "\0" not in ran.stderr
    assert ran.stderr.startswith("a\ufffdb\ufffd[1m\ufffd")
    assert ran.stderr.endswith("\ufffd\tc\r\né")
    assert programs.replace_control_characters("é🙂\ud800\udfff\x7f\x85\u2028") == "é🙂\ufffd\ufffd\ufffd\ufffd\u2028"


@pytest.mark.parametrize("profile", [b"exit 3\n", b"printf() { :; }\n", b"kill -9 $$\n"])
async def test_a_broken_shell_is_reported(engine: SandboxEngine, sandbox: EngineSandbox, profile: bytes) -> None:
    await engine.files.write(sandbox.id, "/home/user/.bash_profile", stream_chunks(profile))
    with pytest.raises(EngineError, match="could not run the platform's program"):
        await engine.programs.run(sandbox.id, ["true"])


async def test_a_missing_tool_is_reported(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    await engine.files.write(sandbox.id, "/home/user/.bash_profile", stream_chunks(b"PATH=/nowhere\n"))
    with pytest.raises(EngineError, match="The program 'base64', which the platform needs"):
        await engine.programs.run(sandbox.id, ["true"])


async def test_a_timeout_ends_the_program_and_its_children(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    started = time.monotonic()
    with pytest.raises(ProgramTimeoutError, match="within 1 s"):
        await engine.programs.run(sandbox.id, ["bash", "-c", "sleep 983 & sleep 983"], timeout_s=1, idempotent=True)
    assert time.monotonic() - started < 10
    found = await run(engine, sandbox.id, "pgrep -f '[s]leep 983'", user="root")
    assert not found.stdout, "the program is ended with its children"


async def test_cancelling_the_call_ends_the_program(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    task = asyncio.create_task(engine.programs.run(sandbox.id, ["sleep", "20"], timeout_s=22))

    async def is_running() -> bool:
        return bool((await run(engine, sandbox.id, "pgrep -f '[p]rintf.*PIPESTATUS'", user="root")).stdout)

    await until(is_running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def is_ended() -> bool:
        return not await is_running()

    await until(is_ended)


async def test_a_paused_sandbox_is_not_resumed(engine: SandboxEngine, new_sandbox: NewSandbox) -> None:
    sandbox = await new_sandbox()
    await engine.pause(sandbox.id)
    with pytest.raises(SandboxNotRunningError):
        await engine.programs.run(sandbox.id, ["true"])
