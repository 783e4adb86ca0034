"""The agent as pid 1 and root of a namespace: users, orphans, signals, and what a tenant must not get at."""

from __future__ import annotations

import array
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import Agent, Client, RpcFailureError


@pytest.fixture
def inside(init_agent: Agent) -> Client:
    return init_agent.client()


def test_programs_run_as_their_user_and_as_nobody_else(init_agent: Agent, inside: Client) -> None:
    status = "grep -E '^(Uid|Gid|Groups|Cap[IPEA].*):' /proc/self/status"
    assert inside.shell(status).stdout.split() == [
        "Uid:", *["1000"] * 4, "Gid:", *["1000"] * 4, "Groups:", "1000", "2000",
        "CapInh:", "0" * 16, "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapAmb:", "0" * 16,
    ]  # fmt: skip
    assert init_agent.client("other").shell("id -u; id -G; echo $HOME").stdout == "1001\n1001 2000\n/\n"
    assert init_agent.client("root").shell("id -u; id -G").stdout.startswith("0\n0")
    # and the agent itself is root again
    assert inside.call("filesystem.Filesystem/Stat", {"path": "/root"})["entry"]["owner"] == "root"
    whose = "sleep 0.1; grep -E '^(Uid|Gid)' /proc/1/status"
    assert inside.shell(whose).stdout.split() == ["Uid:", "0", "0", "0", "0", "Gid:", "0", "0", "0", "0"]


def test_a_directory_that_the_user_may_not_enter(init_agent: Agent, inside: Client, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(RpcFailureError) as failure:
        inside.start("/bin/true", process={"cwd": str(private)})
    assert failure.value.code == "invalid_argument"
    assert "Permission denied" in failure.value.message
    assert init_agent.client("root").start("/bin/pwd", process={"cwd": str(private)}).finish().stdout == f"{private}\n"
    assert inside.shell("id -u").stdout == "1000\n"


def test_what_is_uploaded_belongs_to_the_user(inside: Client) -> None:
    inside.request("POST", "/files?path=made/by/upload", b"x", {"Content-Type": "application/octet-stream"})
    assert inside.shell("stat -c %u:%g made made/by made/by/upload; echo more >> made/by/upload && echo ok").stdout == (
        "1000:1000\n1000:1000\n1000:1000\nok\n"
    )
    inside.request(
        "POST", "/files?path=/tmp/guest-test-root&username=root", b"x", {"Content-Type": "application/octet-stream"}
    )
    entry = inside.call("filesystem.Filesystem/Stat", {"path": "/tmp/guest-test-root"})["entry"]
    inside.call("filesystem.Filesystem/Remove", {"path": "/tmp/guest-test-root"})
    assert (entry["owner"], entry["group"]) == ("root", "root")


def test_accounts_are_read_again_when_they_change(inside: Client, init_agent: Agent) -> None:
    passwd = Path(init_agent.address).parent / "passwd"
    before = passwd.read_text()
    try:
        passwd.write_text(before + "newcomer:x:1234:1234::/tmp:/bin/sh\n")
        assert init_agent.client("newcomer").shell("id -u; pwd").stdout == "1234\n/tmp\n"
    finally:
        passwd.write_text(before)
    with pytest.raises(RpcFailureError):
        init_agent.client("newcomer").shell("true")


def test_pids_are_those_of_the_sandbox(inside: Client) -> None:
    run = inside.shell("echo $$; cat /proc/1/cmdline | tr '\\0' ' '")
    pid, command = run.stdout.split("\n", 1)
    assert int(pid) == run.pid
    assert "sandyard.engine.guest" in command


def test_orphans_are_waited_for(inside: Client) -> None:
    script = "for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.1' >/dev/null 2>&1 &) ; done"
    assert inside.shell(script).end == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    deadline = time.monotonic() + 10
    while "sleep 0.1" in (left := inside.shell("ps -e -o stat=,args=").stdout) or "<defunct>" in left or "\nZ" in left:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_the_inside_cannot_end_the_agent(init_agent: Agent) -> None:
    root = init_agent.client("root")
    for number in (1, 2, 3, 9, 10, 12, 13, 15, 17, 19, 34):
        root.shell(f"kill -{number} 1")
    assert root.shell("echo alive").stdout == "alive\n"


def test_the_agents_own_memory_and_descriptors_are_out_of_bounds(inside: Client, init_agent: Agent) -> None:
    assert inside.shell("cat /proc/1/environ; ls /proc/1/fd; cat /proc/1/maps").stdout == ""
    for path in (
        "/proc/1/environ", "/proc/self/environ", "/proc/thread-self/environ", "/proc/1/task/1/environ",
        "/proc/self/mem", "/proc/self/maps", "/proc/self/root/etc/passwd", "/proc/1/cwd/etc/passwd",
        "/proc/self/fd/0", "/proc/1/exe", "/tmp/../proc/./self/environ",
    ):  # fmt: skip
        for method in ("GET", "POST"):
            answer = inside.request(method, f"/files?path={path}", b"", {"Content-Type": "application/octet-stream"})
            assert answer.status >= 400, (method, path, answer)
            assert b"AGENT_SECRET" not in answer.body
    inside.shell("ln -sfn /proc/self tricky; ln -sf /proc/self/environ trick")
    assert inside.request("GET", "/files?path=tricky/environ").status >= 400
    assert inside.request("GET", "/files?path=trick").status >= 400
    with pytest.raises(RpcFailureError):
        inside.call("filesystem.Filesystem/ListDir", {"path": "/proc/self/fd"})
    for cwd in ("/proc/self/cwd", "/proc/1/root", "/proc/self/fd/3"):
        with pytest.raises(RpcFailureError) as failure:
            inside.start("/bin/true", process={"cwd": cwd})
        assert failure.value.code == "invalid_argument"
    assert inside.request("GET", "/files?path=/proc/version").body.startswith(b"Linux")


def test_dial(inside: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        inside.send("GET", f"/_sandyard/dial?port={port}")
        data, rights, _flags, _address = inside.sock.recvmsg(4096, socket.CMSG_SPACE(4))
        assert data.startswith(b"HTTP/1.1 200 ")
        assert [(level, kind) for level, kind, _ in rights] == [(socket.SOL_SOCKET, socket.SCM_RIGHTS)]
        numbers = array.array("i")
        numbers.frombytes(rights[0][2])
        with socket.socket(fileno=numbers[0]) as passed:
            accepted, _ = listener.accept()
            with accepted:
                passed.setblocking(True)
                passed.sendall(b"through")
                assert accepted.recv(100) == b"through"
    assert inside.request("GET", f"/_sandyard/dial?port={port}").status == 502
    for wrong in ("", "?port=", "?port=0", "?port=x", "?port=70000"):
        assert inside.request("GET", f"/_sandyard/dial{wrong}").status == 400
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        inside.send("GET", f"/_sandyard/dial?port={listener.getsockname()[1]}")
        _, rights, _, _ = inside.sock.recvmsg(4096, socket.CMSG_SPACE(4))
        os.close(array.array("i", rights[0][2])[0])


def test_metrics(inside: Client) -> None:
    first = inside.request("GET", "/metrics").json
    assert set(first) == {
        "ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "disk_used", "disk_total",
    }  # fmt: skip
    inside.shell("timeout 1.2 sh -c 'while :; do :; done'")
    second = inside.request("GET", "/metrics").json
    assert 0 < second["cpu_used_pct"] <= 100
    assert 0 < second["mem_used"] < second["mem_total"]
    assert 0 < second["disk_used"] <= second["disk_total"]


def test_only_the_outside_ends_it(init_agent: Agent, inside: Client) -> None:
    """Last: SIGTERM from the parent namespace lets everything inside end by itself, and then the agent goes."""
    marker = Path(init_agent.address).parent / "home" / "graceful"
    run = init_agent.client().start(
        "/bin/sh", "-c", "trap 'echo bye > graceful; exit' TERM; echo up; while :; do sleep 0.05; done"
    )
    run.until("stdout", b"up")
    children = Path(f"/proc/{init_agent.process.pid}/task/{init_agent.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    assert init_agent.process.wait(20) == 0
    assert marker.read_text() == "bye\n"
