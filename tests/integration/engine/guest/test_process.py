"""Starting processes: their environment, their input and output, and how they end."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import (
    Client,
    GuestAgent,
    RpcFailureError,
    envelope,
    is_alive,
    wait_until,
)

Dial = Callable[[], Client]


def test_output_and_exit_code_are_reported(client: Client) -> None:
    run = client.shell("echo out; echo err >&2; exit 3")
    assert run.output == {"stdout": b"out\n", "stderr": b"err\n", "pty": b""}
    assert run.end == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
    assert run.pid > 1


def test_success_has_no_error(client: Client) -> None:
    assert client.shell("true").end == {"exitCode": 0, "exited": True, "status": "exit status 0"}


def test_death_by_a_signal_is_reported(client: Client) -> None:
    end = client.shell("kill -SEGV $$").end
    assert end is not None
    assert (end["exitCode"], end["exited"]) == (-1, False)
    assert end["status"].startswith("signal: segmentation fault")
    assert end["error"] == end["status"]


def test_a_process_gets_the_environment_of_its_user(client: Client, home: Path) -> None:
    run = client.start("/usr/bin/env", process={"envs": {"MINE": "1", "HOME": "/elsewhere"}}).finish()
    env = dict(line.split("=", 1) for line in run.stdout.splitlines())
    assert env["MINE"] == "1"
    assert env["HOME"] == "/elsewhere"
    assert (env["USER"], env["LOGNAME"], env["SHELL"]) == ("user", "user", "/bin/bash")
    assert env["E2B_SANDBOX"] == "true"
    assert env["PATH"].startswith("/usr/local/sbin:")
    assert "AGENT_SECRET" not in env
    assert client.shell("pwd; umask; readlink /proc/self/fd/0").stdout == f"{home}\n0022\n/dev/null\n"


def test_a_process_has_its_own_session_no_blocked_signals_and_no_extra_files(client: Client) -> None:
    run = client.shell("ps -o pid=,pgid=,sid= -p $$; ls /proc/$$/fd")
    first, *files = run.stdout.splitlines()
    assert first.split() == [str(run.pid)] * 3
    assert files == ["0", "1", "2"]
    blocked, ignored = (
        client.start("/bin/grep", "-E", "SigBlk|SigIgn", "/proc/self/status").finish().stdout.splitlines()
    )
    assert int(blocked.split()[1], 16) == 0
    assert int(ignored.split()[1], 16) & ~(0b11 << 31) == 0  # except two that the C library reserves for itself


def test_init_sets_defaults(dial: Dial, home: Path) -> None:
    client = dial()
    (home / "work").mkdir()
    body = b'{"envVars": {"FROM_INIT": "yes"}, "defaultWorkdir": "/home/user/work"}'
    assert client.request("POST", "/init", body).status == 204
    try:
        assert client.shell("echo $FROM_INIT; pwd").stdout == f"yes\n{home}/work\n"
        assert client.request("GET", "/envs").json["FROM_INIT"] == "yes"
    finally:
        client.request("POST", "/init", b'{"envVars": {"FROM_INIT": ""}, "defaultWorkdir": "/home/user"}')
    assert client.request("POST", "/init", b"{").status == 400
    assert client.request("POST", "/init", b'{"envVars": {"a=b": "c"}}').status == 400
    assert client.request("POST", "/init").status == 204


def test_init_is_not_blocked_by_pipes_and_links_of_a_tenant(dial: Dial, root: Path) -> None:
    folder = root / "run/e2b"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".E2B_SANDBOX").unlink(missing_ok=True)
    os.mkfifo(folder / ".E2B_SANDBOX")
    client = dial()
    assert client.request("POST", "/init", b'{"envVars": {"E2B_SANDBOX_ID": "abc"}}').status == 204
    (folder / ".E2B_SANDBOX").unlink()
    (root / "victim").write_text("precious")
    (folder / ".E2B_SANDBOX").symlink_to(root / "victim")
    assert client.request("POST", "/init", b"{}").status == 204
    assert (root / "victim").read_text() == "precious"
    (folder / ".E2B_SANDBOX").unlink()
    assert client.request("POST", "/init", b"{}").status == 204
    assert (folder / ".E2B_SANDBOX_ID").read_text() == "abc"


def test_init_writes_the_variables_to_a_file_for_older_programs(dial: Dial, root: Path) -> None:
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    client = dial()
    assert client.request("POST", "/init", b'{"envVars": {"LEFT": "here"}}').status == 204
    file = root / "dev/shm/.sandbox-envs.json"
    assert json.loads(file.read_text())["LEFT"] == "here"
    assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    file.symlink_to(root / "elsewhere")
    assert client.request("POST", "/init", b'{"envVars": {"LEFT": ""}}').status == 204
    assert not (root / "elsewhere").exists()


@pytest.mark.parametrize(("cwd", "expected"), [("sub", "sub"), ("~/sub", "sub"), ("~", ""), ("/home/user/sub", "sub")])
def test_working_directories_are_resolved(client: Client, home: Path, cwd: str, expected: str) -> None:
    (home / "sub").mkdir()
    run = client.start("/bin/pwd", process={"cwd": cwd}).finish()
    assert run.stdout == f"{home / expected}\n"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"process": {"cmd": "/bin/true", "cwd": "/not/there"}}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true", "cwd": "~other/x"}}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true", "cwd": "/etc/passwd/x"}}, "invalid_argument"),
        ({"process": {"cmd": ""}}, "invalid_argument"),
        ({}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true", "args": "x"}}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true", "envs": {"a": 1}}}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true", "envs": {"a\0b": "1"}}}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true", "args": ["a\0b"]}}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true"}, "pty": {"size": {"cols": -1}}}, "invalid_argument"),
    ],
)
def test_invalid_start_requests_are_rejected(client: Client, fields: dict[str, object], code: str) -> None:
    with pytest.raises(RpcFailureError) as failure:
        list(client.open_stream("process.Process/Start", fields))
    assert failure.value.code == code
    assert client.shell("echo fine").stdout == "fine\n"


def test_unknown_users_are_rejected(dial: Dial) -> None:
    client = dial()
    client.basic = {"Authorization": "Basic " + base64.b64encode(b"stranger:").decode()}
    with pytest.raises(RpcFailureError) as failure:
        client.shell("true")
    assert (failure.value.code, failure.value.message) == ("unauthenticated", "invalid username: 'stranger'")
    with pytest.raises(RpcFailureError) as failure:
        client.call("process.Process/List")
    assert failure.value.code == "unauthenticated"


def test_a_program_that_cannot_run_fails_as_in_a_shell(client: Client, home: Path) -> None:
    run = client.start("not-a-program", "x").finish()
    assert run.end is not None
    assert run.end["exitCode"] == 127
    assert b"not found" in run.output["stderr"]
    (home / "plain").write_text("x")
    run = client.start("./plain").finish()
    assert run.end is not None
    assert run.end["exitCode"] == 126


def test_a_script_without_a_shebang_runs(client: Client, home: Path) -> None:
    script = home / "script"
    script.write_text('echo "script $1"\n')
    script.chmod(0o755)
    assert client.start("./script", "one").finish().stdout == "script one\n"


def test_programs_are_found_on_the_path_of_the_request(client: Client, home: Path) -> None:
    tool = home / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho tool\n")
    tool.chmod(0o755)
    assert client.start("tool", process={"envs": {"PATH": f"{home}/bin"}}).finish().stdout == "tool\n"


def test_binary_output_is_complete(client: Client) -> None:
    run = client.start("/usr/bin/head", "-c", "3000000", "/dev/urandom", process={"cwd": "/"})
    assert len(run.finish().output["stdout"]) == 3_000_000
    assert client.shell("printf 'a%.0s' $(seq 8191); printf '\\342'").output["stdout"] == b"a" * 8191 + b"\xe2"


def test_stdin_can_be_sent_and_closed(dial: Dial) -> None:
    run = dial().start("/bin/cat", stdin=True)
    control = dial()
    for text in (b"one ", b"", b"two"):
        process = {"pid": run.pid}
        control.call(
            "process.Process/SendInput", {"process": process, "input": {"stdin": base64.b64encode(text).decode()}}
        )
    run.until("stdout", b"one two")
    control.call("process.Process/CloseStdin", {"process": {"pid": run.pid}})
    end = run.finish().end
    assert end is not None
    assert end["exitCode"] == 0
    assert run.output["stdout"] == b"one two"


def test_stdin_is_open_by_default(client: Client, dial: Dial) -> None:
    client.send("POST", "/process.Process/Start", envelope({"process": {"cmd": "/bin/cat"}}), {
        "Content-Type": "application/connect+json",
    })  # fmt: skip
    assert client.read_head().status == 200
    pid = next(client.read_messages())["event"]["start"]["pid"]
    dial().call("process.Process/CloseStdin", {"process": {"pid": pid}})
    assert client.file.read(1)


def test_large_input_waits_for_a_slow_reader(dial: Dial) -> None:
    """More than fits into a pipe, to a process that starts to read late: in order and complete."""
    run = dial().start("/bin/sh", "-c", "read line; echo $line; exec cat | md5sum", stdin=True, tag="slow")
    data = os.urandom(1 << 20)
    control = dial()
    control.call(
        "process.Process/SendInput",
        {"process": {"tag": "slow"}, "input": {"stdin": base64.b64encode(b"go\n").decode()}},
    )
    control.call(
        "process.Process/SendInput", {"process": {"tag": "slow"}, "input": {"stdin": base64.b64encode(data).decode()}}
    )
    control.call("process.Process/CloseStdin", {"process": {"tag": "slow"}})
    assert run.finish().stdout == f"go\n{hashlib.md5(data).hexdigest()}  -\n"


def test_input_that_nobody_reads_times_out_and_stdin_can_be_closed(dial: Dial) -> None:
    run = dial().start("/bin/sleep", "60", stdin=True)
    control = dial()
    message = {"process": {"pid": run.pid}, "input": {"stdin": base64.b64encode(bytes(200_000)).decode()}}
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/SendInput", message, {"Connect-Timeout-Ms": "100"})
    assert failure.value.code == "deadline_exceeded"
    control.call("process.Process/CloseStdin", {"process": {"pid": run.pid}})
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/SendInput", message)
    assert failure.value.code == "failed_precondition"
    control.call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": "SIGNAL_SIGKILL"})
    run.finish()


def test_input_that_the_process_cannot_receive_is_rejected(dial: Dial) -> None:
    run = dial().start("/bin/sleep", "60")
    control = dial()
    for field in ("stdin", "pty"):
        with pytest.raises(RpcFailureError) as failure:
            control.call("process.Process/SendInput", {"process": {"pid": run.pid}, "input": {field: "eA=="}})
        assert failure.value.code == "failed_precondition"
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/SendInput", {"process": {"pid": run.pid}, "input": {}})
    assert failure.value.code == "unimplemented"
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/SendInput", {"process": {"pid": run.pid}, "input": {"stdin": "!!"}})
    assert failure.value.code in ("invalid_argument", "failed_precondition")
    control.call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": 9})
    run.finish()


def test_input_can_be_streamed(dial: Dial) -> None:
    run = dial().start("/bin/cat", stdin=True)
    control = dial()
    parts = [
        {"start": {"process": {"pid": run.pid}}},
        {"data": {"input": {"stdin": base64.b64encode(b"first ").decode()}}},
        {"keepalive": {}},
        {"data": {"input": {"stdin": base64.b64encode(b"second").decode()}}},
    ]
    headers = {"Content-Type": "application/connect+json", "Transfer-Encoding": "chunked"}
    control.send("POST", "/process.Process/StreamInput", headers=headers)
    for part in parts:
        data = envelope(part)
        control.sock.sendall(b"%x\r\n%b\r\n" % (len(data), data))
        if "data" in part:
            run.until("stdout", b"first ")
    control.sock.sendall(b"0\r\n\r\n")
    response = control.read_response()
    assert response.body == envelope({}) + envelope({}, flags=2)
    run.until("stdout", b"first second")
    control.call("process.Process/CloseStdin", {"process": {"pid": run.pid}})
    run.finish()


@pytest.mark.parametrize(
    "parts", [[{"data": {"input": {"stdin": "eA=="}}}], [{"start": {"process": {"pid": 999999}}}], [{"nonsense": 1}]]
)
def test_invalid_input_streams_are_rejected(client: Client, parts: list[object]) -> None:
    body = b"".join(envelope(part) for part in parts)
    response = client.request(
        "POST", "/process.Process/StreamInput", body, {"Content-Type": "application/connect+json"}
    )
    assert response.status == 200
    assert b'"error"' in response.body


def test_processes_can_be_signalled(dial: Dial) -> None:
    control = dial()
    run = dial().start("/bin/sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    run.until("stdout", b"ready")
    control.call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": "SIGNAL_SIGTERM"})
    end = run.finish().end
    assert end is not None
    assert (run.stdout, end["exitCode"]) == ("ready\nbye\n", 7)

    run = dial().start("/bin/sleep", "60")
    control.call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": "SIGNAL_SIGKILL"})
    assert not is_alive(run.pid), "a killed process must be gone when SendSignal returns"
    assert run.pid not in [process["pid"] for process in control.call("process.Process/List")["processes"]]
    end = run.finish().end
    assert end == {"exitCode": -1, "exited": False, "status": "signal: killed", "error": "signal: killed"}
    for method in ("SendSignal", "SendInput", "CloseStdin", "Update"):
        with pytest.raises(RpcFailureError) as failure:
            control.call(f"process.Process/{method}", {"process": {"pid": run.pid}, "signal": 9})
        assert failure.value.code == "not_found"


def test_processes_are_selected_by_pid_or_tag(dial: Dial) -> None:
    control = dial()
    run = dial().start("/bin/sleep", "60", tag="sleeper")
    listed = [process for process in control.call("process.Process/List")["processes"] if process["pid"] == run.pid]
    assert listed == [{"config": {"cmd": "/bin/sleep", "args": ["60"]}, "pid": run.pid, "tag": "sleeper"}]
    for selector in ({}, {"name": "x"}):
        with pytest.raises(RpcFailureError) as failure:
            control.call("process.Process/SendSignal", {"process": selector, "signal": 9})
        assert failure.value.code == "invalid_argument"
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/SendSignal", {"process": {"tag": "nobody"}, "signal": 9})
    assert failure.value.code == "not_found"
    for wrong in ("SIGNAL_UNSPECIFIED", 0, 1, None, [], {}):
        with pytest.raises(RpcFailureError) as failure:
            control.call("process.Process/SendSignal", {"process": {"tag": "sleeper"}, "signal": wrong})
        assert failure.value.code == "unimplemented"
    control.call("process.Process/SendSignal", {"process": {"tag": "sleeper"}, "signal": "SIGNAL_SIGKILL"})
    run.finish()


def test_a_process_group_can_be_signalled(dial: Dial) -> None:
    run = dial().start("/bin/sh", "-c", "sleep 60 & echo $!; wait")
    run.until("stdout", b"\n")
    child = int(run.stdout)
    dial().call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": 9, "descendants": True})
    run.finish()
    wait_until(lambda: not is_alive(child), "the other process of the group must end")


def test_a_deadline_kills_the_process_group_and_ends_the_stream(dial: Dial) -> None:
    started = time.monotonic()
    run = dial().start("/bin/sh", "-c", "sleep 60 & echo $!; wait", headers={"Connect-Timeout-Ms": "2000"})
    run.until("stdout", b"\n")
    child = int(run.stdout)
    with pytest.raises(RpcFailureError) as failure:
        run.finish()
    assert failure.value.code == "deadline_exceeded"
    assert 1.9 <= time.monotonic() - started < 30
    wait_until(lambda: not is_alive(child) and not is_alive(run.pid), "the deadline must end both processes")


def test_a_deadline_also_applies_without_a_reader(dial: Dial) -> None:
    client = dial()
    run = client.start("/bin/sleep", "60", headers={"Connect-Timeout-Ms": "3000"})
    client.close()
    time.sleep(0.2)
    assert is_alive(run.pid), "the process must outlive its client"
    wait_until(lambda: not is_alive(run.pid), "the deadline must apply without the client")


@pytest.mark.parametrize("header", ["x", "-5", "1e3", "9" * 20])
def test_a_malformed_deadline_is_rejected(client: Client, header: str) -> None:
    with pytest.raises(RpcFailureError) as failure:
        client.start("/bin/true", headers={"Connect-Timeout-Ms": header})
    assert failure.value.code == "invalid_argument"


def test_a_deadline_of_zero_means_no_deadline(client: Client) -> None:
    assert (
        client.start("/bin/sh", "-c", "sleep 0.1; echo on", headers={"Connect-Timeout-Ms": "0"}).finish().stdout
        == "on\n"
    )


def test_keepalives_are_sent(client: Client) -> None:
    run = client.start("/bin/sleep", "1.5", headers={"Keepalive-Ping-Interval": "1"}).finish()
    assert run.keepalives >= 1


def test_background_children_hardly_delay_the_end(client: Client, dial: Dial) -> None:
    started = time.monotonic()
    run = client.shell("(sleep 30; true) & echo $!")
    assert time.monotonic() - started < 25
    assert run.end is not None
    child = int(run.stdout)
    assert is_alive(child), "the end of the command must not end what it left running"
    os.kill(child, 9)


def test_output_that_background_children_write_at_once_is_included(client: Client) -> None:
    """The child notices the end at once, because it closes the pipe that the child reads from."""
    script = "rm -f pipe; mkfifo pipe; (read nothing < pipe; echo late) & exec 3> pipe; echo early"
    assert client.shell(script).stdout == "early\nlate\n"


def test_background_children_can_write_after_the_end(client: Client, home: Path) -> None:
    run = client.shell("(sleep 2; for i in 1 2 3; do head -c 200000 /dev/zero; done; echo survived > after) & echo now")
    assert run.stdout == "now\n"
    wait_until(
        (home / "after").exists, "writing to the output of a finished command must neither kill nor block the writer"
    )


def test_a_flood_of_output_waits_for_a_slow_reader_and_is_complete(dial: Dial) -> None:
    control = dial()
    run = dial().start("/bin/sh", "-c", "seq 1 1500000; echo done", tag="flood")
    time.sleep(1)  # the reader does not read
    assert control.request("GET", "/health").status == 204
    output = run.finish().stdout
    assert output == "".join(f"{number}\n" for number in range(1, 1500001)) + "done\n"


@pytest.mark.slow
def test_many_processes_are_listed_and_leave_no_open_descriptors(dial: Dial) -> None:
    """A thousand processes are started, listed and killed."""
    control = dial()
    pid = int(control.shell("echo $PPID").stdout)
    before = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    pids = []
    for number in range(1000):
        client = dial()
        pids.append(client.start("/bin/sleep", "300", tag=f"many-{number}").pid)
        client.close()
    listed = {process["pid"]: process["tag"] for process in control.call("process.Process/List")["processes"]}
    assert [listed[pid] for pid in pids] == [f"many-{number}" for number in range(1000)]
    for number in range(1000):
        control.call("process.Process/SendSignal", {"process": {"tag": f"many-{number}"}, "signal": "SIGNAL_SIGKILL"})
    assert control.call("process.Process/List")["processes"] == []
    wait_until(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) <= before, "all descriptors must be closed")


def test_stopping_the_agent_ends_all_its_processes(tmp_path: Path) -> None:
    agent = GuestAgent.on_host(tmp_path / "agent.sock", tmp_path / "root")
    run = agent.client().start("/bin/sh", "-c", "setsid sleep 100 & (sleep 100 &); echo $!; sleep 100")
    run.until("stdout", b"\n")
    pids = [run.pid, int(run.stdout)]
    agent.stop()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "all processes must end with the agent")
