"""Processes that the OCI runtime of gVisor sandboxes starts and ends, in namespaces of this machine."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.guest.containers import oci_runtime
from sandyard.engine.guest.containers.oci_runtime import Request


def test_processes_of_a_running_container_are_ended_if_it_is_deleted_by_force(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        (tmp_path / "cgroup.procs").write_text(f"{process.pid}\n")
        state = {"init_process_pid": os.getpid(), "cgroup_paths": {"pids": str(tmp_path)}}
        oci_runtime._end_processes(state, force=True)
        assert process.wait(10) == -9


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a container in the namespaces of this process, which any user may enter."""
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc" / "state.json").write_text(json.dumps({"init_process_pid": os.getpid()}))
    monkeypatch.setattr(oci_runtime, "_mount_proc", lambda: None)
    monkeypatch.setattr(oci_runtime, "_set_user", lambda process: None)
    return tmp_path


def _request(folder: Path, process: dict[str, Any], **options: str) -> Request:
    (folder / "process.json").write_text(json.dumps(process))
    given = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    return Request("exec", "abc", {"--root": str(folder), "--process": str(folder / "process.json"), **given})


def test_a_program_runs_with_unlimited_resources(container: Path) -> None:
    unlimited = {"type": "RLIMIT_CORE", "soft": 2**64 - 1, "hard": 2**64 - 1}
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard != resource.RLIM_INFINITY and os.geteuid() != 0:
        pytest.skip("needs the right to raise limits")
    script = f"ulimit -c >{container}/limit"
    assert oci_runtime._execute(_request(container, {"args": ["/bin/sh", "-c", script], "rlimits": [unlimited]})) == 0
    assert (container / "limit").read_text() == "unlimited\n"


@pytest.mark.parametrize("process", [{}, {"args": []}, {"args": ["/bin/true"], "user": {"uid": "x"}}])
def test_an_invalid_request_fails_with_a_reason(container: Path, process: dict[str, Any]) -> None:
    with pytest.raises(oci_runtime.RuntimeFailedError):
        oci_runtime._execute(_request(container, process))


def test_a_process_that_nobody_learns_of_is_ended(container: Path) -> None:
    script = f"sleep 1; touch {container}/survived"
    request = _request(
        container, {"args": ["/bin/sh", "-c", script]}, detach="", pid_file=str(container / "missing" / "pid")
    )
    with pytest.raises(FileNotFoundError):
        oci_runtime._execute(request)
    assert os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) == -9


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_the_status_of_a_program_is_returned_like_by_a_shell(container: Path, script: str, status: int) -> None:
    assert oci_runtime._execute(_request(container, {"args": ["/bin/sh", "-c", script]})) == status
