"""`sandyard sandbox cp`: files and directories, in both directions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from sandyard.cli.sandboxes.files import SandboxFiles
from tests.harness.up import Installation
from tests.unit.cli.server import Reply, Server


def test_files_are_copied_in_both_directions(installation: Installation, sandbox: str, tmp_path: Path) -> None:
    big = tmp_path / "big file"
    big.write_bytes(os.urandom(5_000_000))
    installation.ok("sandbox", "cp", str(big), f"{sandbox}:up/there")
    installation.ok("sandbox", "cp", f"{sandbox}:up/there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    installation.ok("sandbox", "cp", str(big), f"{sandbox}:up/")
    installation.ok("sandbox", "cp", f"{sandbox}:up/big file", str(tmp_path / "back"))
    installation.ok("sandbox", "cp", "-", f"{sandbox}:note", stdin=b"by hand")
    assert installation.ok("sandbox", "cp", f"{sandbox}:note", "-") == "by hand"
    missing = installation.run("sandbox", "cp", f"{sandbox}:/no/such", str(tmp_path))
    assert missing.returncode == 3
    assert b"/no/such" in missing.stderr
    assert installation.run("sandbox", "cp", str(tmp_path / "nothing"), f"{sandbox}:x").returncode == 3
    assert installation.run("sandbox", "cp", str(big), str(tmp_path)).returncode == 2
    assert {entry.name for entry in tmp_path.iterdir()} <= {"big file", "back", "config"}, "failed copies leave nothing"


def make_tree(folder: Path) -> Path:
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "deep" / "file").write_text("deep")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    return folder


def test_directories_are_copied_as_tar(installation: Installation, sandbox: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    (tree / "empty").mkdir()
    (tree / "link").symlink_to("run")
    installation.ok("sandbox", "cp", str(tree), f"{sandbox}:project")
    installation.ok("sandbox", "cp", str(tree), f"{sandbox}:project")
    listed = installation.ok(
        "sandbox", "exec", sandbox, "cd project && find . | sort && ls -d /tmp/sandyard-cp-* 2>&1; readlink link"
    )
    assert "./tree/sub/deep/file" in listed, "an existing directory gets the source as a subdirectory"
    assert "./empty" in listed
    assert "No such file" in listed, "nothing is left in the sandbox's /tmp"
    assert listed.endswith("run\n")
    installation.ok("sandbox", "cp", f"{sandbox}:project/tree", str(tmp_path / "back"))
    assert (tmp_path / "back" / "sub" / "deep" / "file").read_text() == "deep"
    assert (tmp_path / "back" / "run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "back" / "link").is_symlink()
    assert (tmp_path / "back" / "empty").is_dir()


def test_a_link_to_a_directory_is_copied_as_a_directory(
    installation: Installation, sandbox: str, tmp_path: Path
) -> None:
    installation.ok("sandbox", "exec", sandbox, "mkdir -p real && echo x > real/x && ln -sfn real alias")
    installation.ok("sandbox", "cp", f"{sandbox}:alias", str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "x").read_text() == "x\n"


def test_a_link_out_of_the_directory_is_skipped(installation: Installation, sandbox: str, tmp_path: Path) -> None:
    installation.ok("sandbox", "exec", sandbox, "mkdir -p evil && ln -sfn /etc/passwd evil/out && echo ok > evil/a")
    done = installation.run("sandbox", "cp", f"{sandbox}:evil", str(tmp_path / "copy"))
    assert done.returncode == 0
    assert b"Skipped links that can lead outside the copied directory: './out'." in done.stderr
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["a"]


def test_directories_are_copied_file_by_file_without_tar(
    installation: Installation, sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For sandboxes without tar, and for projects whose policy forbids it."""
    monkeypatch.setattr(SandboxFiles, "has_tar", lambda self: False)
    tree = make_tree(tmp_path / "tree")
    installation.ok("sandbox", "cp", str(tree), f"{sandbox}:single")
    installation.ok("sandbox", "exec", sandbox, "cd single && mkfifo pipe && ln -s / loop && mkdir empty")
    installation.ok("sandbox", "cp", f"{sandbox}:single", str(tmp_path / "back"))
    found = sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*"))
    assert found == ["empty", "run", "sub", "sub/deep", "sub/deep/file"]
    assert (tmp_path / "back" / "sub" / "deep" / "file").read_text() == "deep"


def test_a_directory_does_not_replace_a_file(installation: Installation, sandbox: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    installation.ok("sandbox", "exec", sandbox, "echo x > plain")
    assert b"plain is a file" in installation.run("sandbox", "cp", str(tree), f"{sandbox}:plain").stderr
    (tmp_path / "here").write_text("x")
    assert b"here is a file" in installation.run("sandbox", "cp", f"{sandbox}:/etc/apt", str(tmp_path / "here")).stderr


def test_a_broken_transfer_leaves_the_target_unchanged(server: Server, tmp_path: Path) -> None:
    entry = {"name": "file", "kind": "file"}
    server.on("GET", "/sandboxes/sbx_1/files/list", Reply(200, {"items": [entry]}))
    server.on("GET", "/sandboxes/sbx_1/files", Reply(200, b"half", "application/octet-stream", cut=True))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("as before")
    result = CliRunner().invoke(cli, ["sandbox", "cp", "sbx_1:file", str(tmp_path / "target")])
    assert result.exit_code == 5
    assert [(path.name, path.read_text()) for path in (tmp_path / "target").iterdir()] == [("file", "as before")]


@pytest.mark.parametrize("arguments", [("a", "b"), ("sbx_1:a", "sbx_2:b"), ("sbx_1:", "b")])
def test_invalid_arguments_are_usage_errors(arguments: tuple[str, str]) -> None:
    assert CliRunner().invoke(cli, ["sandbox", "cp", *arguments]).exit_code == 2
