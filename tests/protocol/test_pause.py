"""Test pause and resume: on request, at the timeout, on traffic; with memory and without."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from e2b import Sandbox, SandboxException, SandboxNotFoundException, SandboxNotRunningException, SandboxState

from tests.harness.sdk import get_access_token

from .conftest import DataPlane, NewSandbox
from .waiting import until

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def is_paused(sandbox: Sandbox) -> bool:
    return sandbox.get_info().state == SandboxState.PAUSED


def test_memory_and_processes_survive_a_pause(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(envs={"KEPT": "yes"})
    boot = sandbox.files.read(BOOT_ID)
    counter = sandbox.commands.run(
        "i=0; while true; do i=$((i+1)); echo $i > count; sleep 0.05; done", background=True, timeout=0
    )
    until(lambda: sandbox.files.exists("count"))

    assert sandbox.pause() is True
    assert is_paused(sandbox)
    assert not sandbox.is_running()
    assert sandbox.pause() is False, "the sandbox is already paused"
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("true")

    connected = sandbox.connect()
    assert connected.sandbox_id == sandbox.sandbox_id
    assert not is_paused(sandbox)
    assert sandbox.files.read(BOOT_ID) == boot
    before = int(sandbox.files.read("count") or 0)
    until(lambda: int(sandbox.files.read("count") or 0) > before + 2)
    assert counter.pid in [process.pid for process in sandbox.commands.list()]
    assert sandbox.commands.run("echo $KEPT").stdout == "yes\n"
    assert sandbox.commands.kill(counter.pid)


def test_a_pause_without_memory_keeps_only_the_files(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(envs={"KEPT": "yes"})
    boot = sandbox.files.read(BOOT_ID)
    sandbox.files.write("note.txt", "on disk")
    running = sandbox.commands.run("sleep 600", background=True, timeout=0)

    assert sandbox.pause(keep_memory=False) is True
    assert not sandbox.is_running()
    sandbox.connect()
    assert sandbox.files.read("note.txt") == "on disk"
    assert sandbox.files.read(BOOT_ID) != boot
    assert running.pid not in [process.pid for process in sandbox.commands.list()]
    assert sandbox.commands.run("echo $KEPT").stdout == "yes\n"


def test_a_paused_sandbox_can_be_resumed_by_a_reboot(sandbox: Sandbox) -> None:
    boot = sandbox.files.read(BOOT_ID)
    sandbox.files.write("note.txt", "on disk")
    sandbox.pause()
    sandbox.connect(on_resume="reboot")
    assert sandbox.files.read("note.txt") == "on disk"
    assert sandbox.files.read(BOOT_ID) != boot


def test_connect_returns_201_when_it_resumes_the_sandbox(sandbox: Sandbox, api: httpx.Client) -> None:
    for route in ("/v2/sandboxes", "/sandboxes"):
        sandbox.pause()
        response = api.post(f"{route}/{sandbox.sandbox_id}/connect", json={"timeout": 30})
        assert response.status_code == 201, response.text
        assert response.json()["envdAccessToken"] == get_access_token(sandbox)


def test_the_old_resume_route_resumes_a_paused_sandbox(sandbox: Sandbox, api: httpx.Client) -> None:
    route = f"/sandboxes/{sandbox.sandbox_id}/resume"
    assert api.post(route, json={}).status_code == 409, "the sandbox is not paused"
    sandbox.pause()
    response = api.post(route, json={"timeout": 100})
    assert response.status_code == 201, response.text
    assert response.json()["sandboxID"] == sandbox.sandbox_id
    assert sandbox.is_running()


def test_concurrent_pauses_pause_once(sandbox: Sandbox, api: httpx.Client) -> None:
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: api.post(f"/sandboxes/{sandbox.sandbox_id}/pause").status_code, range(5)))
    assert set(answers) <= {204, 409}
    assert 204 in answers
    assert is_paused(sandbox)


def test_concurrent_connects_resume_once(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.pause()

    def connect(_: int) -> tuple[int, str]:
        response = api.post(f"/v2/sandboxes/{sandbox.sandbox_id}/connect", json={})
        return response.status_code, api.get(f"/sandboxes/{sandbox.sandbox_id}").json()["state"]

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(connect, range(5)))
    assert {status for status, _ in answers} <= {200, 201}
    assert {state for _, state in answers} == {"running"}


@pytest.mark.slow  # test_the_timeout_of_a_command_stops_during_a_pause covers the same clock
def test_the_timeout_stops_while_the_sandbox_is_paused(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    sandbox.set_timeout(4)
    sandbox.pause()
    with pytest.raises(AssertionError):
        until(lambda: not is_paused(sandbox), 5)
    sandbox.connect(timeout=30)
    assert sandbox.is_running()


def test_a_paused_sandbox_can_be_killed(sandbox: Sandbox) -> None:
    sandbox.pause()
    assert sandbox.kill() is True
    with pytest.raises(SandboxNotFoundException):
        sandbox.connect()


@pytest.mark.parametrize("keep_memory", [True, False])
def test_auto_pause_at_the_timeout(new_sandbox: NewSandbox, keep_memory: bool) -> None:
    sandbox = new_sandbox(timeout=60, lifecycle={"on_timeout": {"action": "pause", "keep_memory": keep_memory}})
    boot = sandbox.files.read(BOOT_ID)
    sandbox.files.write("note.txt", "kept")
    sandbox.set_timeout(0)
    until(lambda: is_paused(sandbox), 10)
    assert sandbox.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": False}
    assert not sandbox.is_running(), "without auto-resume, checking the state must not resume it"
    assert is_paused(sandbox)
    sandbox.connect()
    assert sandbox.files.read("note.txt") == "kept"
    assert (sandbox.files.read(BOOT_ID) == boot) is keep_memory


def test_auto_resume_on_agent_traffic(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    assert sandbox.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}
    sandbox.set_timeout(0)
    until(lambda: is_paused(sandbox), 10)
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    assert not is_paused(sandbox)


def test_auto_resume_on_preview_traffic(new_sandbox: NewSandbox, data_plane: DataPlane) -> None:
    sandbox = new_sandbox(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.files.write("/home/user/index.html", "woken")
    sandbox.commands.run("python3 -m http.server 8000", background=True, timeout=0)
    preview = data_plane(sandbox, port=8000)
    until(lambda: preview.get("/").status_code == 200)
    sandbox.set_timeout(0)
    until(lambda: is_paused(sandbox), 10)
    assert preview.get("/").text == "woken"
    assert not is_paused(sandbox)


def test_reading_the_state_does_not_resume_a_sandbox(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.pause()
    for _ in range(3):
        assert is_paused(sandbox)
        Sandbox.list().next_items()
        sandbox.get_metrics()
    assert is_paused(sandbox)


def test_the_timeout_of_a_paused_sandbox_cannot_be_set(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.pause()
    response = api.post(f"/sandboxes/{sandbox.sandbox_id}/timeout", json={"timeout": 60})
    assert response.status_code in (404, 409)


def test_no_output_is_lost_over_a_pause(sandbox: Sandbox) -> None:
    """The output is read from the old stream, or after a new connect if the stream ended with an error."""
    command = sandbox.commands.run("sleep 1; echo after the pause; sleep 600", background=True, timeout=0)
    sandbox.pause()
    sandbox.connect()
    try:
        assert next(iter(command))[0] == "after the pause\n"
    except SandboxException:
        connected = sandbox.commands.connect(command.pid, timeout=0)
        assert next(iter(connected))[0] == "after the pause\n"
    sandbox.commands.kill(command.pid)


@pytest.mark.parametrize("body", [{"memory": "some"}, [], {"memory": 1}], ids=str)
def test_invalid_pause_requests_are_refused(sandbox: Sandbox, api: httpx.Client, body: object) -> None:
    assert api.post(f"/sandboxes/{sandbox.sandbox_id}/pause", json=body).status_code == 400
    assert sandbox.is_running()


def test_the_timeout_of_a_command_stops_during_a_pause(sandbox: Sandbox) -> None:
    """A pause longer than the remaining time does not end the command."""
    running = sandbox.commands.run("sleep 600", background=True, timeout=3)
    sandbox.pause()
    time.sleep(3.5)
    sandbox.connect()
    assert running.pid in [process.pid for process in sandbox.commands.list()]
    until(lambda: running.pid not in [process.pid for process in sandbox.commands.list()], 20)
