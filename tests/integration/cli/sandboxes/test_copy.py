"""`sandyard sandbox cp`: files and directories, both ways."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from sandyard.cli.sandboxes.files import Files
from tests.integration.cli.real import Yard
from tests.unit.cli.server import Reply, Server


def test_files_cross_both_ways(yard: Yard, box: str, tmp_path: Path) -> None:
    big = tmp_path / "big file"
    big.write_bytes(os.urandom(5_000_000))
    yard.ok("sandbox", "cp", str(big), f"{box}:up/there")
    yard.ok("sandbox", "cp", f"{box}:up/there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    yard.ok("sandbox", "cp", str(big), f"{box}:up/")
    yard.ok("sandbox", "cp", f"{box}:up/big file", str(tmp_path / "back"))
    yard.ok("sandbox", "cp", "-", f"{box}:note", stdin=b"by hand")
    assert yard.ok("sandbox", "cp", f"{box}:note", "-") == "by hand"
    missing = yard.run("sandbox", "cp", f"{box}:/no/such", str(tmp_path))
    assert missing.returncode == 3
    assert b"/no/such" in missing.stderr
    assert yard.run("sandbox", "cp", str(tmp_path / "nothing"), f"{box}:x").returncode == 3
    assert yard.run("sandbox", "cp", str(big), str(tmp_path)).returncode == 2
    assert {entry.name for entry in tmp_path.iterdir()} == {"big file", "back", "config"} & {
        entry.name for entry in tmp_path.iterdir()
    }


def make_tree(folder: Path) -> Path:
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "deep" / "file").write_text("deep")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    return folder


def test_directories_as_tar(yard: Yard, box: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    (tree / "empty").mkdir()
    (tree / "link").symlink_to("run")
    yard.ok("sandbox", "cp", str(tree), f"{box}:project")
    yard.ok("sandbox", "cp", str(tree), f"{box}:project")
    listed = yard.ok(
        "sandbox", "exec", box, "cd project && find . | sort && ls -d /tmp/sandyard-cp-* 2>&1; readlink link"
    )
    assert "./tree/sub/deep/file" in listed, "into a directory that is there"
    assert "./empty" in listed
    assert "No such file" in listed, "nothing is left in the sandbox's /tmp"
    assert listed.endswith("run\n")
    yard.ok("sandbox", "cp", f"{box}:project/tree", str(tmp_path / "back"))
    assert (tmp_path / "back" / "sub" / "deep" / "file").read_text() == "deep"
    assert (tmp_path / "back" / "run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "back" / "link").is_symlink()
    assert (tmp_path / "back" / "empty").is_dir()


def test_a_link_to_a_directory_is_one(yard: Yard, box: str, tmp_path: Path) -> None:
    yard.ok("sandbox", "exec", box, "mkdir -p real && echo x > real/x && ln -sfn real alias")
    yard.ok("sandbox", "cp", f"{box}:alias", str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "x").read_text() == "x\n"


def test_what_would_leave_the_directory_is_refused(yard: Yard, box: str, tmp_path: Path) -> None:
    yard.ok("sandbox", "exec", box, "mkdir -p evil && ln -sfn /etc/passwd evil/out && echo ok > evil/a")
    done = yard.run("sandbox", "cp", f"{box}:evil", str(tmp_path / "copy"))
    assert done.returncode == 1
    assert b"out" in done.stderr
    assert not (tmp_path / "copy" / "out").exists()


def test_directories_file_by_file(yard: Yard, box: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a sandbox has no tar, or its project's policy forbids it."""
    monkeypatch.setattr(Files, "_has_tar", lambda self: False)
    tree = make_tree(tmp_path / "tree")
    yard.ok("sandbox", "cp", str(tree), f"{box}:single")
    yard.ok("sandbox", "exec", box, "cd single && mkfifo pipe && ln -s / loop && mkdir empty")
    yard.ok("sandbox", "cp", f"{box}:single", str(tmp_path / "back"))
    found = sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*"))
    assert found == ["empty", "run", "sub", "sub/deep", "sub/deep/file"]
    assert (tmp_path / "back" / "sub" / "deep" / "file").read_text() == "deep"


def test_a_file_does_not_become_a_directory(yard: Yard, box: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    yard.ok("sandbox", "exec", box, "echo x > plain")
    assert b"plain is a file" in yard.run("sandbox", "cp", str(tree), f"{box}:plain").stderr
    (tmp_path / "here").write_text("x")
    assert b"here is a file" in yard.run("sandbox", "cp", f"{box}:/etc/apt", str(tmp_path / "here")).stderr


def test_a_transfer_that_breaks_leaves_nothing(server: Server, tmp_path: Path) -> None:
    entry = {"name": "file", "kind": "file"}
    server.on("GET", "/sandboxes/sbx_1/files/list", Reply(200, {"items": [entry]}))
    server.on("GET", "/sandboxes/sbx_1/files", Reply(200, b"half", "application/octet-stream", cut=True))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("as before")
    result = CliRunner().invoke(cli, ["sandbox", "cp", "sbx_1:file", str(tmp_path / "target")])
    assert result.exit_code == 5
    assert [(path.name, path.read_text()) for path in (tmp_path / "target").iterdir()] == [("file", "as before")]


@pytest.mark.parametrize("arguments", [("a", "b"), ("sbx_1:a", "sbx_2:b"), ("sbx_1:", "b")])
def test_wrong_usage(arguments: tuple[str, str]) -> None:
    assert CliRunner().invoke(cli, ["sandbox", "cp", *arguments]).exit_code == 2
