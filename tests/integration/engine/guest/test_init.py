"""The guest agent as pid 1 and root of a namespace: users, orphans, signals, and what a tenant must not access."""

from __future__ import annotations

import array
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import Client, GuestAgent, RpcFailureError


@pytest.fixture
def init_client(init_agent: GuestAgent) -> Client:
    return init_agent.client()


def test_programs_run_as_the_requested_user_without_privileges(init_agent: GuestAgent, init_client: Client) -> None:
    status = "grep -E '^(Uid|Gid|Groups|Cap[IPEA].*):' /proc/self/status"
    assert init_client.shell(status).stdout.split() == [
        "Uid:", *["1000"] * 4, "Gid:", *["1000"] * 4, "Groups:", "1000", "2000",
        "CapInh:", "0" * 16, "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapAmb:", "0" * 16,
    ]  # fmt: skip
    assert init_agent.client("other").shell("id -u; id -G; echo $HOME").stdout == "1001\n1001 2000\n/\n"
    assert init_agent.client("root").shell("id -u; id -G").stdout.startswith("0\n0")
    # and the agent itself is root again
    assert init_client.call("filesystem.Filesystem/Stat", {"path": "/root"})["entry"]["owner"] == "root"
    ids_of_pid_1 = "sleep 0.1; grep -E '^(Uid|Gid)' /proc/1/status"
    assert init_client.shell(ids_of_pid_1).stdout.split() == ["Uid:", "0", "0", "0", "0", "Gid:", "0", "0", "0", "0"]


def test_a_working_directory_that_the_user_may_not_enter_is_rejected(
    init_agent: GuestAgent, init_client: Client, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(RpcFailureError) as failure:
        init_client.start("/bin/true", process={"cwd": str(private)})
    assert failure.value.code == "invalid_argument"
    assert "Permission denied" in failure.value.message
    assert init_agent.client("root").start("/bin/pwd", process={"cwd": str(private)}).finish().stdout == f"{private}\n"
    assert init_client.shell("id -u").stdout == "1000\n"


def test_uploaded_files_belong_to_the_user(init_client: Client) -> None:
    init_client.request("POST", "/files?path=made/by/upload", b"x", {"Content-Type": "application/octet-stream"})
    assert init_client.shell(
        "stat -c %u:%g made made/by made/by/upload; echo more >> made/by/upload && echo ok"
    ).stdout == ("1000:1000\n1000:1000\n1000:1000\nok\n")
    init_client.request(
        "POST", "/files?path=/tmp/guest-test-root&username=root", b"x", {"Content-Type": "application/octet-stream"}
    )
    entry = init_client.call("filesystem.Filesystem/Stat", {"path": "/tmp/guest-test-root"})["entry"]
    init_client.call("filesystem.Filesystem/Remove", {"path": "/tmp/guest-test-root"})
    assert (entry["owner"], entry["group"]) == ("root", "root")


def test_accounts_are_read_again_when_they_change(init_client: Client, init_agent: GuestAgent) -> None:
    passwd = Path(init_agent.address).parent / "passwd"
    before = passwd.read_text()
    try:
        passwd.write_text(before + "newcomer:x:1234:1234::/tmp:/bin/sh\n")
        assert init_agent.client("newcomer").shell("id -u; pwd").stdout == "1234\n/tmp\n"
    finally:
        passwd.write_text(before)
    with pytest.raises(RpcFailureError):
        init_agent.client("newcomer").shell("true")


def test_pids_are_those_of_the_sandbox(init_client: Client) -> None:
    run = init_client.shell("echo $$; cat /proc/1/cmdline | tr '\\0' ' '")
    pid, command = run.stdout.split("\n", 1)
    assert int(pid) == run.pid
    assert "sandyard.engine.guest" in command


def test_orphans_are_reaped(init_client: Client) -> None:
    script = "for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.1' >/dev/null 2>&1 &) ; done"
    assert init_client.shell(script).end == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    deadline = time.monotonic() + 10
    while (
        "sleep 0.1" in (left := init_client.shell("ps -e -o stat=,args=").stdout)
        or "<defunct>" in left
        or "\nZ" in left
    ):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_processes_inside_cannot_kill_the_agent(init_agent: GuestAgent) -> None:
    root = init_agent.client("root")
    for number in (1, 2, 3, 9, 10, 12, 13, 15, 17, 19, 34):
        root.shell(f"kill -{number} 1")
    assert root.shell("echo alive").stdout == "alive\n"


def test_memory_and_descriptors_of_the_agent_are_inaccessible(init_client: Client, init_agent: GuestAgent) -> None:
    assert init_client.shell("cat /proc/1/environ; ls /proc/1/fd; cat /proc/1/maps").stdout == ""
    for path in (
        "/proc/1/environ", "/proc/self/environ", "/proc/thread-self/environ", "/proc/1/task/1/environ",
        "/proc/self/mem", "/proc/self/maps", "/proc/self/root/etc/passwd", "/proc/1/cwd/etc/passwd",
        "/proc/self/fd/0", "/proc/1/exe", "/tmp/../proc/./self/environ",
    ):  # fmt: skip
        for method in ("GET", "POST"):
            response = init_client.request(
                method, f"/files?path={path}", b"", {"Content-Type": "application/octet-stream"}
            )
            assert response.status >= 400, (method, path, response)
            assert b"AGENT_SECRET" not in response.body
    init_client.shell("ln -sfn /proc/self tricky; ln -sf /proc/self/environ trick")
    assert init_client.request("GET", "/files?path=tricky/environ").status >= 400
    assert init_client.request("GET", "/files?path=trick").status >= 400
    with pytest.raises(RpcFailureError):
        init_client.call("filesystem.Filesystem/ListDir", {"path": "/proc/self/fd"})
    for cwd in ("/proc/self/cwd", "/proc/1/root", "/proc/self/fd/3"):
        with pytest.raises(RpcFailureError) as failure:
            init_client.start("/bin/true", process={"cwd": cwd})
        assert failure.value.code == "invalid_argument"
    assert init_client.request("GET", "/files?path=/proc/version").body.startswith(b"Linux")


def test_dial_passes_a_connected_socket(init_client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        init_client.send("GET", f"/_sandyard/dial?port={port}")
        data, rights, _flags, _address = init_client.sock.recvmsg(4096, socket.CMSG_SPACE(4))
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
    assert init_client.request("GET", f"/_sandyard/dial?port={port}").status == 502
    for wrong in ("", "?port=", "?port=0", "?port=x", "?port=70000"):
        assert init_client.request("GET", f"/_sandyard/dial{wrong}").status == 400
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        init_client.send("GET", f"/_sandyard/dial?port={listener.getsockname()[1]}")
        _, rights, _, _ = init_client.sock.recvmsg(4096, socket.CMSG_SPACE(4))
        os.close(array.array("i", rights[0][2])[0])


def test_metrics_report_cpu_memory_and_disk(init_client: Client) -> None:
    first = init_client.request("GET", "/metrics").json
    assert set(first) == {
        "ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "disk_used", "disk_total",
    }  # fmt: skip
    init_client.shell("timeout 1.2 sh -c 'while :; do :; done'")
    second = init_client.request("GET", "/metrics").json
    assert 0 < second["cpu_used_pct"] <= 100
    assert 0 < second["mem_used"] < second["mem_total"]
    assert 0 < second["disk_used"] <= second["disk_total"]


def test_sigterm_from_outside_ends_the_agent_gracefully(init_agent: GuestAgent, init_client: Client) -> None:
    """Must run last: SIGTERM from the parent namespace lets everything inside end by itself, and then the agent exits."""
    marker = Path(init_agent.address).parent / "home" / "graceful"
    run = init_agent.client().start(
        "/bin/sh", "-c", "trap 'echo bye > graceful; exit' TERM; echo up; while :; do sleep 0.05; done"
    )
    run.until("stdout", b"up")
    children = Path(f"/proc/{init_agent.process.pid}/task/{init_agent.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    assert init_agent.process.wait(20) == 0
    assert marker.read_text() == "bye\n"
