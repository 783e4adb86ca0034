"""`sandyard git diff`: for terminals, for pipes and for `git apply`. File contents cannot control the terminal."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.harness.up import Installation, Terminal
from tests.unit.cli.git.answers import SANDBOX
from tests.unit.cli.server import Reply, Server

PATCH = """diff --git a/login.py b/login.py
index 000..111 100644
--- a/login.py
+++ b/login.py
@@ -1,2 +1,2 @@ def login():
-    return\tFalse
+    return True\x1b[2J\u202e
 # done\r
"""


def changed_file(path: str, **more: Any) -> dict[str, Any]:
    plain = {"change": "modified", "oldPath": None, "added": 1, "removed": 1, "binary": False, "truncated": False}
    return {"path": path, **plain, "patch": None, "oldMode": None, "newMode": None, **more}


FILES = [
    changed_file("login.py", patch=PATCH),
    changed_file("new name.txt", change="renamed", oldPath="old.txt", added=0, removed=0),
    changed_file("logo.png", change="added", binary=True, added=None, removed=None, newMode="100644"),
    changed_file("huge.sql", truncated=True, added=90000, removed=3),
]
DIFF = {"base": "a" * 40, "head": "b" * 40, "files": FILES, "added": 90001, "removed": 4, "truncated": False}


@pytest.fixture
def diff_server(server: Server) -> Server:
    server.on("GET", f"/git/{SANDBOX}/diff", Reply(200, DIFF))
    return server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["git", "diff", SANDBOX, *arguments])


def test_a_pipe_gets_a_plain_patch(diff_server: Server) -> None:
    printed = run().stdout
    warning, *lines = printed.splitlines()
    assert warning == "login.py: Contains invisible or direction-changing characters."
    assert printed.count("Contains invisible") == 1
    assert lines[:6] == PATCH.split("\n")[:6]
    assert lines[6:8] == ["+    return True^[[2J<U+202E>", " # done^M"]
    assert lines[8:11] == ["diff --git a/old.txt b/new name.txt", "rename from old.txt", "rename to new name.txt"]
    assert "new file mode 100644\nlogo.png is a binary file and not shown.\n" in printed
    assert "huge.sql has too many changes to show (+90000 -3 lines).\n" in printed
    assert "\x1b" not in printed
    assert diff_server.requests[0].query == {"against": "base", "patches": "true"}


def test_options_become_query_parameters(diff_server: Server) -> None:
    assert json.loads(run("-o", "json", "--against", "head", "--", "a", "-b").stdout) == DIFF
    assert diff_server.requests[0].queries == {"against": ["head"], "patches": ["true"], "path": ["a", "-b"]}
    assert run("--name-only").stdout.splitlines() == ["login.py", "new name.txt", "logo.png", "huge.sql"]
    assert diff_server.requests[1].query["patches"] == "false"


def test_an_invalid_commit_is_a_usage_error(server: Server) -> None:
    result = run("--against", "../x")
    assert result.exit_code == 2
    assert "is not base, head or a commit id" in result.stderr
    assert server.requests == []


def test_stat_prints_a_summary_of_each_file(diff_server: Server) -> None:
    lines = run("--stat").stdout.splitlines()
    assert lines[0] == " login.py                |     2 +-"
    assert lines[1] == " old.txt => new name.txt |     0"
    assert lines[2] == " logo.png                | binary"
    assert lines[3] == f" huge.sql                | 90003 {'+' * 40}-"
    assert lines[4] == " 4 files changed, +90001 -4 lines"


def test_raw_output_can_be_applied_by_git(server: Server, tmp_path: Path) -> None:
    def git(*arguments: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(["git", *arguments], cwd=tmp_path, input=stdin, capture_output=True, check=True).stdout

    git("init", "-q")
    (tmp_path / "a").write_bytes(b"one\r\ntwo\x1b\n")
    git("add", "a")
    (tmp_path / "a").write_bytes(b"one\r\n2\x1b\r\n")
    patch = git("diff").decode()
    (tmp_path / "a").write_bytes(b"one\r\ntwo\x1b\n")
    server.on("GET", f"/git/{SANDBOX}/diff", Reply(200, DIFF | {"files": [changed_file("a", patch=patch), FILES[2]]}))
    result = run("--raw")
    git("apply", stdin=result.stdout_bytes)
    assert (tmp_path / "a").read_bytes() == b"one\r\n2\x1b\r\n"
    assert "Skipped: logo.png is a binary file" in result.stderr


def test_a_truncated_diff_is_reported(server: Server) -> None:
    server.on("GET", f"/git/{SANDBOX}/diff", Reply(200, DIFF | {"truncated": True}))
    assert "Not all files are shown" in run("--stat").stderr


def open_terminal(**settings: str) -> Terminal:
    return Terminal(Installation.command("git", "diff", SANDBOX), {**os.environ, **settings})


def test_a_terminal_gets_colours_and_a_pager(diff_server: Server, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged $LESS\ncat\n")
    pager.chmod(0o700)
    shown = open_terminal(PAGER=str(pager))
    try:
        shown.until("paged FRX")
        shown.until("\x1b[1mdiff --git a/login.py b/login.py\x1b[0m")
        shown.until("\x1b[31m-    return\tFalse\x1b[0m")
        shown.until("\x1b[32m+    return True^[[2J<U+202E>\x1b[0m")
        assert shown.wait_for_exit() == 0
    finally:
        shown.close()


def test_no_color_disables_colours(diff_server: Server) -> None:
    shown = open_terminal(NO_COLOR="1", PAGER="cat")
    try:
        assert shown.wait_for_exit() == 0
        assert b"return True^[[2J<U+202E>" in shown.shown
        assert b"\x1b" not in shown.shown
    finally:
        shown.close()
