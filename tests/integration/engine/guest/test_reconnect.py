"""Following a process from another connection: unread output is kept, and so is an exit that nobody saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import Client, RpcFailureError, is_alive, wait_until

Dial = Callable[[], Client]


def test_unread_output_goes_to_the_next_reader(dial: Dial, home: Path) -> None:
    client = dial()
    run = client.start(
        "/bin/sh",
        "-c",
        "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; echo three; touch written; sleep 60",
    )
    run.until("stdout", b"one\n")
    client.close()
    (home / "go").touch()
    wait_until((home / "written").exists, "the process must write without a reader")
    follower = dial().attach(pid=run.pid)
    assert follower.pid == run.pid
    assert follower.until("stdout", b"three\n").stdout == "two\nthree\n"
    dial().call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": 9})
    assert follower.finish().end is not None


def test_an_exit_that_nobody_saw_is_reported_to_late_readers(dial: Dial) -> None:
    client = dial()
    run = client.start("/bin/sh", "-c", "sleep 0.2; echo result; exit 5", tag="late")
    client.close()
    control = dial()
    wait_until(
        lambda: run.pid not in [entry["pid"] for entry in control.call("process.Process/List")["processes"]],
        "the process must end",
    )
    assert not is_alive(run.pid)
    for expected in ("result\n", ""):
        follower = dial().attach(tag="late").finish()
        assert follower.stdout == expected
        assert follower.end is not None
        assert (follower.pid, follower.end["exitCode"]) == (run.pid, 5)
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": 9})
    assert failure.value.code == "not_found"


def test_a_reused_tag_selects_the_newest_process(dial: Dial) -> None:
    dial().start("/bin/sh", "-c", "exit 1", tag="reused").finish()
    run = dial().start("/bin/sh", "-c", "sleep 0.3; exit 2", tag="reused")
    follower = dial().attach(tag="reused").finish()
    assert follower.pid == run.pid
    assert follower.end is not None
    assert follower.end["exitCode"] == 2


def test_attaching_to_an_unknown_process_fails(client: Client) -> None:
    for selector in ({"pid": 999_999}, {"tag": "nobody"}):
        with pytest.raises(RpcFailureError) as failure:
            client.attach(**selector)
        assert failure.value.code == "not_found"


def test_two_readers_get_the_same_output(dial: Dial, home: Path) -> None:
    run = dial().start("/bin/sh", "-c", "while [ ! -e go2 ]; do sleep 0.02; done; seq 1 50000")
    follower = dial().attach(pid=run.pid)
    (home / "go2").touch()
    assert run.finish().output == follower.finish().output
    assert run.end == follower.end
    assert run.stdout.endswith("50000\n")


def test_output_kept_without_a_reader_is_bounded_and_does_not_block(dial: Dial, home: Path) -> None:
    client = dial()
    run = client.start("/bin/sh", "-c", "seq 1 2000000; touch through; sleep 60")
    client.close()
    wait_until((home / "through").exists, "a process without a reader must not be blocked")
    agent = int(dial().shell("echo $PPID").stdout)
    status = Path(f"/proc/{agent}/status").read_text()
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert resident < 60_000, f"the agent uses {resident} KiB"
    kept = dial().attach(pid=run.pid).until("stdout", b"\n2000000\n").stdout
    assert 100_000 < len(kept) < 3_000_000
    assert kept.endswith("1999999\n2000000\n"), "the newest output is what is kept"
    dial().call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": 9})


def test_the_deadline_of_a_follower_ends_only_its_stream(dial: Dial) -> None:
    run = dial().start("/bin/sleep", "60")
    follower = dial().attach(pid=run.pid, headers={"Connect-Timeout-Ms": "2000"})
    with pytest.raises(RpcFailureError) as failure:
        follower.finish()
    assert failure.value.code == "deadline_exceeded"
    assert is_alive(run.pid)
    dial().call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": 9})


def test_the_deadline_of_a_follower_applies_during_a_flood_of_output(dial: Dial) -> None:
    run = dial().start("/bin/sh", "-c", "while :; do echo x; done")
    follower = dial().attach(pid=run.pid, headers={"Connect-Timeout-Ms": "2000"})
    with pytest.raises(RpcFailureError) as failure:
        while True:
            run.step()
            follower.step()
    assert failure.value.code == "deadline_exceeded"
    dial().call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": 9, "descendants": True})


def test_a_reader_that_stalls_and_disconnects_does_not_stop_the_process(dial: Dial, home: Path) -> None:
    client = dial()
    run = client.start("/bin/sh", "-c", "seq 1 500000; touch written; sleep 60")
    time.sleep(0.3)
    assert not (home / "written").exists(), "the process must wait while its reader stalls"
    client.close()
    wait_until((home / "written").exists, "the process must continue when its reader is gone")
    dial().call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": 9})
