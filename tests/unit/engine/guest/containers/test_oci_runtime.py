from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from sandyard.engine.guest.containers import oci_runtime
from sandyard.engine.guest.containers.oci_runtime import Request


def test_the_command_line_of_containerd_is_understood() -> None:
    line = "--root /run/moby --log /log --log-format json exec --process /process --detach --pid-file /pid abc"
    request = Request.parse(line.split())
    assert (request.command, request.container) == ("exec", "abc")
    assert request.options["--root"] == "/run/moby" and request.options["--process"] == "/process"
    assert "--detach" in request.options


def test_options_may_contain_their_value() -> None:
    request = Request.parse(["--root=/run/moby", "--systemd-cgroup", "delete", "--force", "abc"])
    assert (request.command, request.container, request.options["--root"]) == ("delete", "abc", "/run/moby")


def test_arguments_after_the_container_are_not_options() -> None:
    request = Request.parse(["exec", "-p", "/process", "abc", "--root", "/other"])
    assert request.options == {"--process": "/process"}


def test_a_container_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    process = tmp_path / "process.json"
    process.write_text(json.dumps({"args": ["true"]}))
    request = Request("exec", "abc", {"--root": str(tmp_path), "--process": str(process)})
    with pytest.raises(oci_runtime.RuntimeFailedError, match="container abc does not exist"):
        oci_runtime._execute(request)


def test_errors_are_written_to_the_log_of_the_caller(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    oci_runtime._report(Request("exec", "abc", {"--log": str(log)}), "exec failed")
    assert json.loads(log.read_text())["msg"] == "exec failed"


def test_capabilities_become_a_mask() -> None:
    assert oci_runtime._make_mask(["CAP_CHOWN", "CAP_NET_RAW", "CAP_UNKNOWN"]) == 1 | 1 << 13
    assert oci_runtime._make_mask(None) == 0


def test_processes_of_a_running_container_are_not_ended(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"{os.getppid()}\n")
    state = {"init_process_pid": os.getpid(), "cgroup_paths": {"pids": str(tmp_path)}}
    oci_runtime._end_processes(state, force=False)


def test_a_missing_program_is_named_like_docker_expects() -> None:
    with pytest.raises(ValueError, match=r'exec: "missing": executable file not found in \$PATH'):
        oci_runtime._run_program("missing", ["missing"], {"PATH": "/nonexistent"})


@pytest.mark.parametrize("state", ["{", "{}"])
def test_a_container_with_a_broken_state_is_still_deleted_by_runc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc" / "state.json").write_text(state)
    started: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["oci-runtime", "--root", str(tmp_path), "delete", "abc"])
    monkeypatch.setattr(os, "execvp", lambda program, arguments: started.append(arguments))
    oci_runtime.main()
    assert started[0][-2:] == ["delete", "abc"]


def test_the_home_directory_is_that_of_the_containers_account(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text("root:x:0:0:root:/root:/bin/sh\nbroken:1\napp:x:1000:1000::/srv/app:\nhomeless:x:7:7:::\n")
    homes = [oci_runtime._find_home(uid, str(passwd)) for uid in (0, 1000, 7, 1)]
    assert homes == ["/root", "/srv/app", "/", "/"]
    os.mkfifo(tmp_path / "pipe")
    assert oci_runtime._find_home(0, str(tmp_path / "pipe")) == "/", "a pipe does not block it"
    assert oci_runtime._find_home(0, str(tmp_path)) == "/"
