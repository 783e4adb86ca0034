"""Repositories of a backup that somebody has changed: nothing in them runs programs or reads other files of the machine."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path

from click.testing import CliRunner

from sandyard.cli.backup.archive import ArchiveWriter, Manifest
from sandyard.cli.main import cli
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.mirror import Mirror, Mirrors
from sandyard.platform.settings import PlatformSettings
from tests.forge.repositories import git
from tests.integration.platform.domain.repositories.mirrored import open_mirror_harness


def open_mirror(data: Path) -> Mirror:
    settings = PlatformSettings(data_dir=data / "platform")
    return Mirrors(Git(settings.git_dir, timeout_s=60), settings).get("p1")


def add_program(path: Path, marker: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {path.name} >> {marker}\n")
    path.chmod(0o700)


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def write_archive_of_everything(data: Path, file: Path) -> None:
    """Write a backup with every file of the directory, unlike `sandyard backup`."""
    archive = ArchiveWriter(file, [], lambda size, name: None)
    archive.add_manifest(Manifest("now", "1", "sqlite", engine=False))
    for path in sorted(data.rglob("*")):
        name = f"data/{path.relative_to(data)}"
        if stat.S_ISDIR(path.stat().st_mode):
            archive.add_folder(name, path.stat())
        else:
            with path.open("rb") as opened:
                archive.add_file(name, opened.fileno())
    archive.finish()


async def test_a_restored_repository_has_only_its_objects_and_refs(tmp_path: Path) -> None:
    data, restored, marker = tmp_path / "installation", tmp_path / "restored", tmp_path / "marker"
    with open_mirror_harness(tmp_path) as harness:
        await open_mirror(data).refresh(harness.remote, harness.credential)
        with contextlib.closing(sqlite3.connect(data / "platform/platform.db")) as connection:
            connection.execute("CREATE TABLE things (name TEXT)")
        honest = list_files(data)
        mirror = data / "platform/git/p1.git"
        written = (mirror / "config").read_text()

        private = tmp_path / "private"
        git("init", "-q", str(private), cwd=tmp_path)
        (private / "secret.txt").write_text("secret\n")
        git("add", "-A", cwd=private)
        git("commit", "-q", "-m", "secret", cwd=private)
        secret = git("rev-parse", "HEAD", cwd=private).decode().strip()
        (mirror / "objects/info").mkdir(exist_ok=True)
        (mirror / "objects/info/alternates").write_text(f"{private}/.git/objects\n")
        for name in ("credential", "alternates", "sample"):
            add_program(mirror / "hooks" / name, marker)
        # a restored file is not executable by others, but these are run through a shell
        hooks = restored / "platform/git/p1.git/hooks"
        (mirror / "config").write_text(
            f'{written}[credential]\n\thelper = "!sh {hooks}/credential"\n[core]\n\talternateRefsCommand = sh {hooks}/alternates\n'
        )
        (mirror / "config.worktree").write_text(f"[core]\n\talternateRefsCommand = sh {hooks}/alternates\n")
        (mirror / "info").mkdir(exist_ok=True)
        (mirror / "info/attributes").write_text("* diff=x\n")
        sample = data / "platform/samples/usr_1.git"
        git("clone", "-q", "--bare", str(harness.site.path), str(sample), cwd=tmp_path)
        add_program(sample / "hooks/pre-receive", marker)
        for name in (".netrc", "bytecode/x.pyc", ".local/lib/python3/site-packages/usercustomize.py", "git/.netrc"):
            path = data / "platform" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("machine example.com login x password y\n")
        write_archive_of_everything(data, tmp_path / "backup")

        done = CliRunner().invoke(cli, ["restore", str(tmp_path / "backup"), "--data-dir", str(restored)])
        assert done.exit_code == 0, done.output
        work = harness.clone_guest()
        commit = harness.commit_in_guest({"a.txt": "a\n"})
        git("push", "-q", str(restored / "platform/samples/usr_1.git"), "HEAD:refs/heads/more", cwd=work)
        git("push", "-q", str(harness.site.path), "HEAD:refs/heads/main", cwd=work)
        reopened = open_mirror(restored)
        await reopened.refresh(harness.remote, harness.credential)
        assert await reopened.is_on_remote(commit), "it continues from the restored state"
        assert not marker.exists(), f"these programs of the backup ran: {marker.read_text()}"
        assert not await reopened.has_commit(secret), "another repository of the machine is read"
    kept = list_files(restored)
    samples = {name for name in kept if name.startswith("platform/samples/")}
    assert (restored / "platform/git/p1.git/config").read_text() == written
    assert (restored / "platform/samples/usr_1.git/config").read_text() == written
    assert {name.split("/")[3] for name in samples} <= {"HEAD", "config", "packed-refs", "refs", "objects"}
    added = {name for name in kept - honest - samples if "/objects/" not in name and "/refs/" not in name}
    assert added == {"up.lock"}
