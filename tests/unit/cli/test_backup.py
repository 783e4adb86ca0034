"""Backups: their contents, their encryption, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner, Result

from sandyard.cli.backup import collection, databases
from sandyard.cli.backup.archive import ArchiveReader, ArchiveWriter, Manifest
from sandyard.cli.backup.contents import REPOSITORY_CONFIG
from sandyard.cli.main import cli
from sandyard.cli.up.data_directory import RESTORE_FOLDER, DataDirectory
from sandyard.engine.store.database import Database
from sandyard.engine.store.schema import STEPS
from sandyard.kit.age import DecryptingReader, PrivateKey

CONTENTS = {
    "engine.key": b"e2b_key\n",
    "platform/secret.key": b"00\n",
    "platform/output/ab/cmd_ab/stdout": b"output\n",
    "platform/git/prj_1.git/HEAD": b"ref: refs/heads/main\n",
    "platform/git/prj_1.git/refs/heads/main": b"1" * 40,
    "platform/git/prj_1.git/packed-refs": b"# pack-refs\n",
    "platform/git/prj_1.git/objects/11/222": b"object",
    "platform/git/prj_1.git/objects/pack/pack-1.pack": b"pack",
    "platform/git/prj_1.git/sandyard/complete": b"",
    "platform/git/known_hosts": b"host ssh-ed25519 AAAA\n",
    "platform/samples/usr_1.git/HEAD": b"ref: refs/heads/main\n",
    "platform/samples/usr_1.git/objects/11/222": b"object",
    "engine/secrets.key": b"11\n",
    "engine/ca/egress/key.pem": b"key",
}
LEFT_OUT = {
    "platform/lock": b"1\n",
    "platform/bytecode/x.pyc": b"x",
    "platform/.netrc": b"x",
    "platform/git/prj_1.git/HEAD.lock": b"",
    "platform/git/prj_1.git/config": b"[core]\n",
    "platform/git/prj_1.git/hooks/pre-receive": b"x",
    "platform/git/prj_1.git/objects/info/alternates": b"/objects\n",
    "platform/git/prj_1.git/objects/pack/tmp_pack_1": b"part",
    "platform/git/prj_1.git/sandyard/bundles/full-1.bundle": b"cache",
    "platform/git/prj_2-1.removed/HEAD": b"",
    "engine/store.img": b"store",
    "engine/run/sbx/agent.sock": b"",
    "up.log": b"log",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory whose databases are in use."""
    folder = tmp_path / "data"
    for name, content in (CONTENTS | LEFT_OUT).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name in ("platform/platform.db", "platform/workflows.db"):
        with contextlib.closing(sqlite3.connect(folder / name)) as connection:
            connection.executescript(
                "PRAGMA journal_mode = WAL; CREATE TABLE things (name TEXT); INSERT INTO things VALUES ('one')"
            )
    database = Database(folder / "engine/engine.db")
    database.open()
    database.execute(
        "INSERT INTO sandboxes (id, template_id, created_at, spec, state, handle, network, started_at, ends_at, timeout_s, on_timeout) "
        "VALUES ('sbx', 'base', 1, '{}', 'running', '{}', '{}', 1, 1, 1, 'kill')"
    )
    database.execute("INSERT INTO logs (sandbox_id, at, level, message, fields) VALUES ('sbx', 7, 20, 'text', '{}')")
    database.execute("INSERT INTO api_keys VALUES ('key', 'label', x'00', 'hint', 1)")
    database.set_meta("epoch", "3")
    database.close()
    (folder / "platform").chmod(0o700)
    return folder


def call(*arguments: object, **variables: str) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], env=variables)


def read_things(database: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM things ORDER BY rowid")]


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_restored_directory_has_everything_but_caches(data: Path, tmp_path: Path) -> None:
    key, file, restored = tmp_path / "key", tmp_path / "backup", tmp_path / "restored"
    with contextlib.closing(sqlite3.connect(data / "platform/platform.db")) as writer:
        writer.execute("INSERT INTO things VALUES ('in the log')")
        writer.commit()
        writer.execute("INSERT INTO things VALUES ('uncommitted')")
        assert call("backup", file, "--data-dir", data, "--new-key", key).exit_code == 0
    assert call("restore", file, "--data-dir", restored, "--identity", key).exit_code == 0
    found = list_files(restored)
    found_databases = {name for name in found if name.endswith(".db")}
    assert found_databases == {"platform/platform.db", "platform/workflows.db", "engine/engine.db"}
    configs = {f"platform/{name}.git/config": REPOSITORY_CONFIG.encode() for name in ("git/prj_1", "samples/usr_1")}
    assert {name: found[name] for name in found.keys() - found_databases - {"up.lock"}} == CONTENTS | configs
    assert read_things(restored / "platform/platform.db") == ["one", "in the log"]
    with contextlib.closing(sqlite3.connect(restored / "engine/engine.db")) as connection:
        assert connection.execute("SELECT count(*) FROM sandboxes").fetchone() == (0,), (
            "their processes and files are gone"
        )
        assert connection.execute("SELECT message FROM logs").fetchall() == [("text",)]
        assert connection.execute("SELECT * FROM ended").fetchall() == [("sbx", 7.0)]
        assert connection.execute("SELECT * FROM meta").fetchall() == [("epoch", "3")]
        assert connection.execute("SELECT id, hash FROM api_keys").fetchall() == [("key", b"\0")]
    assert (restored / "platform").stat().st_mode & 0o777 == 0o700
    assert (restored / "engine.key").stat().st_mode & 0o077 == 0


def test_the_second_backup_can_use_the_same_public_key(data: Path, tmp_path: Path) -> None:
    key = PrivateKey.generate()
    (tmp_path / "key").write_text(f"# mine\n{key.text.reveal()}\n")
    variables = {"SANDYARD_BACKUP_RECIPIENTS": str(key.public_key), "SANDYARD_DATA_DIR": str(data)}
    assert call("backup", tmp_path / "one", **variables).exit_code == 0
    again = call("backup", tmp_path / "one", **variables)
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)
    assert call("restore", tmp_path / "one", "--check", "--identity", tmp_path / "key").exit_code == 0
    other = PrivateKey.generate()
    (tmp_path / "other").write_text(other.text.reveal())
    refused = call("restore", tmp_path / "one", "--check", "--identity", tmp_path / "other")
    assert (refused.exit_code, "secret key was not given" in refused.stderr) == (1, True)
    assert other.text.reveal() not in refused.output


def test_nothing_is_written_without_encryption_unless_asked_for(data: Path, tmp_path: Path) -> None:
    refused = call("backup", tmp_path / "file", "--data-dir", data)
    assert (refused.exit_code, "Choose how to encrypt the backup" in refused.stderr) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "data"] or not (tmp_path / "file").exists()
    assert call("backup", tmp_path / "file", "--data-dir", data, "--no-encryption").exit_code == 0
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert "is complete" in call("restore", tmp_path / "file", "--check").stdout
    both = call(
        "backup", tmp_path / "two", "--data-dir", data, "--no-encryption", "-r", PrivateKey.generate().public_key
    )
    assert (both.exit_code, "Choose one" in both.stderr) == (1, True)


def test_a_passphrase_is_read_from_a_file(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.kit.age.WORK_FACTOR", 10)
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("short\n")
    refused = call("backup", tmp_path / "file", "--data-dir", data, "--passphrase-file", passphrase)
    assert (refused.exit_code, "too short" in refused.stderr) == (1, True)
    passphrase.write_text("five random words of mine\n")
    assert call("backup", tmp_path / "file", "--data-dir", data, "--passphrase-file", passphrase).exit_code == 0
    assert "--passphrase-file" in call("restore", tmp_path / "file", "--check").stderr
    assert call("restore", tmp_path / "file", "--check", "--passphrase-file", passphrase).exit_code == 0
    passphrase.write_text("five random words of others\n")
    assert "not with this one" in call("restore", tmp_path / "file", "--check", "--passphrase-file", passphrase).stderr


def test_a_backup_can_be_unpacked_without_sandyard(data: Path, tmp_path: Path) -> None:
    key = PrivateKey.generate()
    assert call("backup", tmp_path / "file", "--data-dir", data, "-r", key.public_key).exit_code == 0
    with (tmp_path / "file").open("rb") as file:
        plain = io.BufferedReader(DecryptingReader(file, [key]))
        with tarfile.open(fileobj=zstandard.ZstdDecompressor().stream_reader(plain), mode="r|") as tar:
            tar.extractall(tmp_path / "unpacked")
    unpacked = tmp_path / "unpacked"
    assert json.loads((unpacked / "manifest.json").read_text())["format"] == "sandyard-backup"
    assert (unpacked / "data/engine.key").read_bytes() == CONTENTS["engine.key"]
    assert sum(1 for _ in (unpacked / "SHA256SUMS").open()) == len(CONTENTS) + 4


@pytest.mark.parametrize("fault", ["link", "directory link", "no database", "no directory"])
def test_data_that_cannot_be_backed_up_is_refused(data: Path, tmp_path: Path, fault: str) -> None:
    if fault == "link":
        (data / "platform/output/ab/link").symlink_to("/etc/passwd")
    elif fault == "directory link":
        shutil.move(data / "platform/git", tmp_path / "git")
        (data / "platform/git").symlink_to(tmp_path / "git")
    elif fault == "no database":
        (data / "platform/platform.db").unlink()
    else:
        data = tmp_path / "nothing"
    refused = call("backup", tmp_path / "file", "--data-dir", data, "--no-encryption")
    expected = {
        "link": "link is a symbolic link",
        "directory link": "git is a symbolic link",
        "no database": "SANDYARD_DATABASE_URL",
        "no directory": "is not the data directory",
    }
    assert (refused.exit_code, expected[fault] in refused.stderr) == (1, True), refused.output
    assert not [path for path in tmp_path.iterdir() if "file" in path.name], "no part of the file is left"


def test_a_backup_says_that_it_lacks_records_of_the_engine_in_postgresql(data: Path, tmp_path: Path) -> None:
    silent = call("backup", tmp_path / "first", "--data-dir", data, "--no-encryption")
    assert "engine's records" not in silent.stderr
    (data / "engine/id").write_text("id\n")
    done = call("backup", tmp_path / "second", "--data-dir", data, "--no-encryption")
    assert (done.exit_code, "engine's records, which are in PostgreSQL" in done.stderr) == (0, True), done.output


def test_objects_that_git_packs_meanwhile_are_found(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = data / "platform/git/prj_1.git/objects"
    add_file = ArchiveWriter.add_file

    def add_and_pack(self: ArchiveWriter, name: str, descriptor: int) -> None:
        add_file(self, name, descriptor)
        if name.endswith("packed-refs"):
            (objects / "pack/pack-0.pack").write_bytes(b"new pack")
            shutil.rmtree(objects / "11")
        elif name.endswith("pack-1.pack"):
            (objects / "aa").mkdir()
            (objects / "aa/bb").write_bytes(b"new object")

    monkeypatch.setattr(ArchiveWriter, "add_file", add_and_pack)
    assert call("backup", tmp_path / "file", "--data-dir", data, "--no-encryption").exit_code == 0
    assert call("restore", tmp_path / "file", "--data-dir", tmp_path / "restored").exit_code == 0
    restored = list_files(tmp_path / "restored/platform/git/prj_1.git/objects")
    assert restored == {"pack/pack-0.pack": b"new pack", "pack/pack-1.pack": b"pack", "aa/bb": b"new object"}


def test_a_file_that_shrinks_keeps_its_size(data: Path, tmp_path: Path) -> None:
    output = data / "platform/output/ab/cmd_ab/stdout"
    with output.open("rb") as file:
        archive = ArchiveWriter(tmp_path / "file", [], lambda size, name: os.truncate(output, 0))
        archive.add_manifest(Manifest("now", "1", "none", engine=False))
        output.write_bytes(bytes(3 << 20))
        archive.add_file("data/grown", file.fileno())
        archive.finish()
    with (tmp_path / "file").open("rb") as written:
        (member,) = list(ArchiveReader(written, []))
    assert str(member.path) == "grown"


def test_a_failed_backup_leaves_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ArchiveWriter, "finish", fail)
    assert call("backup", tmp_path / "file", "--data-dir", data, "--no-encryption").exit_code == 1
    assert not [path for path in tmp_path.iterdir() if "file" in path.name]
    assert not (data / collection.STAGING).exists()


def test_damage_is_found_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    key = PrivateKey.generate()
    (tmp_path / "key").write_text(key.text.reveal())
    assert call("backup", tmp_path / "file", "--data-dir", data, "-r", key.public_key).exit_code == 0
    whole = (tmp_path / "file").read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:-5] + b"x" + whole[-4:], b"", b"something else"):
        (tmp_path / "damaged").write_bytes(content)
        refused = call(
            "restore", tmp_path / "damaged", "--data-dir", tmp_path / "restored", "--identity", tmp_path / "key"
        )
        assert refused.exit_code == 1, content[:20]
        assert {path.name for path in (tmp_path / "restored").iterdir()} <= {"up.lock"}
    assert (
        call(
            "restore", tmp_path / "file", "--data-dir", tmp_path / "restored", "--identity", tmp_path / "key"
        ).exit_code
        == 0
    )


def write_archive(path: Path, *members: tuple[str, bytes | None]) -> None:
    """Write an unencrypted archive. A member without content is a link to /etc."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w|") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc"
            tar.addfile(info, io.BytesIO(content or b""))
    path.write_bytes(zstandard.compress(plain.getvalue()))


MANIFEST = ("manifest.json", Manifest("now", "1", "sqlite", engine=False).encode())


@pytest.mark.parametrize(
    "members",
    [
        [MANIFEST, ("data/../../evil", b"x")],
        [MANIFEST, ("/data/evil", b"x")],
        [MANIFEST, ("data", b"x")],
        [MANIFEST, ("evil", b"x")],
        [MANIFEST, ("data//evil", b"x")],
        [MANIFEST, ("data/platform", None)],
        [MANIFEST, ("data/a", b"x"), ("data/a", b"y")],
        [MANIFEST, ("data/a", b"x")],
        [MANIFEST, ("data/a", b"x"), ("SHA256SUMS", b"")],
        [MANIFEST, ("SHA256SUMS", b"0" * 64 + b"  manifest.json\n")],
        [("manifest.json", b"{}")],
        [("manifest.json", b'{"format": "other", "version": 1}')],
        [("data/a", b"x")],
        [],
    ],
    ids=str,
)
def test_an_archive_with_anything_else_in_it_is_refused(
    members: list[tuple[str, bytes | None]], tmp_path: Path
) -> None:
    write_archive(tmp_path / "file", *members)
    refused = call("restore", tmp_path / "file", "--data-dir", tmp_path / "restored")
    assert refused.exit_code == 1
    assert "backup" in refused.stderr.lower(), refused.stderr
    assert {path.name for path in (tmp_path / "restored").iterdir()} <= {"up.lock"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "config") == ["file", "restored"]


def make_entry(name: str, kind: bytes, size: int, pax_headers: dict[str, str] | None = None) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.pax_headers = kind, size, pax_headers or {}
    return info.tobuf(tarfile.PAX_FORMAT)


@pytest.mark.parametrize(
    "entry",
    [
        make_entry("x", tarfile.XHDTYPE, 4 << 30),
        make_entry("x", tarfile.XGLTYPE, 2 << 20) + bytes(2 << 20),
        make_entry("x", tarfile.GNUTYPE_LONGNAME, 2 << 20) + bytes(2 << 20),
        make_entry("data/a", tarfile.GNUTYPE_SPARSE, 0),
        make_entry("data/a", tarfile.REGTYPE, 0, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
        make_entry("data/a", tarfile.REGTYPE, 0, {"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"}),
    ],
    ids=["pax", "global", "long name", "sparse", "sparse 1.0", "sparse 0.1"],
)
def test_entries_that_would_take_all_memory_are_refused(entry: bytes, tmp_path: Path) -> None:
    manifest = tarfile.TarInfo(MANIFEST[0])
    manifest.size = len(MANIFEST[1])
    start = manifest.tobuf() + MANIFEST[1].ljust(512, b"\0")
    (tmp_path / "file").write_bytes(zstandard.compress(start + entry + bytes(1024)))
    refused = call("restore", tmp_path / "file", "--check")
    assert refused.exit_code == 1
    assert "header that is too large" in refused.stderr or "sparse" in refused.stderr, refused.stderr


FORGED_SNAPSHOT = "(id, tag, created_at, spec) VALUES ('hostroot', 'default', 1, '{\"layers\": [\"/\"]}')"
FORGERIES = {
    "join token": "INSERT INTO join_tokens VALUES ('token', x'00', 1e12, NULL, 'static')",
    "volume": "INSERT INTO volumes VALUES ('/etc', 'name', 'token', 1, 1, 'live')",
    "case": f"ALTER TABLE snapshots RENAME TO other; ALTER TABLE other RENAME TO Snapshots; INSERT INTO Snapshots {FORGED_SNAPSHOT}",
    "trigger": f'CREATE TRIGGER "a ""b" AFTER INSERT ON ended BEGIN INSERT INTO snapshots {FORGED_SNAPSHOT}; END',
    "view": f"INSERT INTO snapshots {FORGED_SNAPSHOT}; ALTER TABLE snapshots RENAME TO x; CREATE VIEW snapshots AS SELECT * FROM x",
    "table": "CREATE TABLE things (name TEXT); INSERT INTO things VALUES ('/etc')",
    "column": "ALTER TABLE logs ADD COLUMN more TEXT DEFAULT 'x'",
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_the_store_of_another_machine_is_never_restored(
    forgery: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that was changed could name paths and processes of this machine as those of sandboxes."""
    expected = read_schema(data / "engine/engine.db")
    with contextlib.closing(sqlite3.connect(data / "engine/engine.db")) as connection:
        connection.executescript(forgery)
    with monkeypatch.context() as patches:
        patches.setattr(databases, "remove_store_records", lambda path: None)
        assert call("backup", tmp_path / "hostile", "--data-dir", data, "--no-encryption").exit_code == 0
    restored = tmp_path / "restored"
    assert call("restore", tmp_path / "hostile", "--data-dir", restored).exit_code == 0
    assert read_schema(restored / "engine/engine.db") == expected
    with contextlib.closing(sqlite3.connect(restored / "engine/engine.db")) as connection:
        for table in ("sandboxes", "snapshots", "volumes", "join_tokens"):
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == [], table
    assert list_files(restored).keys().isdisjoint({"engine/engine.db.new"})


def read_schema(database: Path) -> set[tuple[str, str, str | None]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return set(connection.execute("SELECT type, name, sql FROM sqlite_master"))


def test_a_database_of_an_older_engine_keeps_its_schema(data: Path, tmp_path: Path) -> None:
    """The engine upgrades it when it starts."""
    (data / "engine/engine.db").unlink()
    with contextlib.closing(sqlite3.connect(data / "engine/engine.db")) as connection:
        connection.executescript(f"{STEPS[0]}; PRAGMA user_version = 1")
        connection.execute("INSERT INTO meta VALUES ('epoch', '3')")
        connection.execute(
            "INSERT INTO logs (sandbox_id, at, level, message, fields) VALUES ('sbx', 7, 20, 'text', '{}')"
        )
        connection.commit()
    assert call("backup", tmp_path / "file", "--data-dir", data, "--no-encryption").exit_code == 0
    assert call("restore", tmp_path / "file", "--data-dir", tmp_path / "restored").exit_code == 0
    database = Database(tmp_path / "restored/engine/engine.db")
    database.open()
    try:
        assert database.get_meta("epoch") == "3"
        assert database.query("SELECT * FROM ended") == [("sbx", 7.0)]
    finally:
        database.close()


def test_a_database_of_a_newer_engine_is_refused(data: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(data / "engine/engine.db")) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    refused = call("backup", tmp_path / "file", "--data-dir", data, "--no-encryption")
    assert (refused.exit_code, "newer version" in refused.stderr) == (1, True)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "name", ["engine/store.img", "engine/instance.json", "engine/run/i1/handle.json", "other", "up.lock"]
)
def test_files_that_no_backup_contains_are_refused(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine mounts its store, and ends the processes of the cgroups that are named in its data directory."""

    def add(archive: ArchiveWriter, root: Path, root_name: str) -> None:
        if root_name == "platform/git":
            collection._add(archive, data / "platform/secret.key", name)

    monkeypatch.setattr(collection, "_add_repositories", add)
    assert call("backup", tmp_path / "hostile", "--data-dir", data, "--no-encryption").exit_code == 0
    for arguments in (("--check",), ("--data-dir", tmp_path / "restored")):
        refused = call("restore", tmp_path / "hostile", *arguments)
        assert refused.exit_code == 1
        assert "does not belong there" in refused.stderr
    assert {path.name for path in (tmp_path / "restored").glob("*")} <= {"up.lock"}


def test_the_password_of_the_database_is_no_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of processes are visible to all users of the machine."""
    calls = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append((command, env["PGPASSWORD"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(databases, "find_client", lambda program: program)
    for url in ("postgresql+asyncpg://u:hidden@h/d", "postgresql+asyncpg://u@h/d?password=hidden&sslmode=require"):
        databases.dump_postgresql(url, tmp_path / "dump")
        command, password = calls.pop()
        assert password == "hidden"
        assert "hidden" not in " ".join(command)


def test_a_newer_format_names_the_version_to_install(tmp_path: Path) -> None:
    manifest = json.loads(MANIFEST[1]) | {"version": 2, "sandyard": "9.1"}
    write_archive(tmp_path / "file", ("manifest.json", json.dumps(manifest).encode()))
    assert "Sandyard 9.1 in a newer format" in call("restore", tmp_path / "file", "--check").stderr


def test_an_interrupted_restore_is_repeated_and_never_started(data: Path, tmp_path: Path) -> None:
    file, restored = tmp_path / "file", tmp_path / "restored"
    assert call("backup", file, "--data-dir", data, "--no-encryption").exit_code == 0
    (restored / RESTORE_FOLDER).mkdir(parents=True)
    (restored / "engine").mkdir()
    with pytest.raises(Exception, match="restore` was interrupted"):
        DataDirectory(restored).acquire_lock()
    assert call("restore", file, "--data-dir", restored).exit_code == 0
    assert (restored / "engine/secrets.key").exists()
    assert not (restored / RESTORE_FOLDER).exists()
    (restored / "note").touch()
    refused = call("restore", file, "--data-dir", restored)
    assert (refused.exit_code, "is not empty" in refused.stderr) == (1, True)
    assert (restored / "note").exists()


def test_a_failed_restore_leaves_an_empty_directory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, restored = tmp_path / "file", tmp_path / "restored"
    assert call("backup", file, "--data-dir", data, "--no-encryption").exit_code == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1))
    refused = call("restore", file, "--data-dir", restored)
    assert (refused.exit_code, "Free some space" in refused.stderr) == (1, True)
    monkeypatch.undo()
    (data / "platform/platform.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert {path.name for path in restored.iterdir()} == {"up.lock"}
    assert call("backup", tmp_path / "two", "--data-dir", data, "--no-encryption").exit_code == 1
    assert not (tmp_path / "two").exists()


def test_the_database_settings_must_fit(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    url = {"SANDYARD_DATABASE_URL": "postgresql://localhost/sandyard"}
    refused = call("backup", tmp_path / "file", "--data-dir", data, "--no-encryption", **url)
    assert (refused.exit_code, "postgresql-client" in refused.stderr) == (1, True)
    assert (
        call("backup", tmp_path / "file", "--data-dir", data, "--no-encryption", "--without-database", **url).exit_code
        == 0
    )
    refused = call("restore", tmp_path / "file", "--data-dir", tmp_path / "restored")
    assert (refused.exit_code, "Set SANDYARD_DATABASE_URL" in refused.stderr) == (1, True)
    assert call("restore", tmp_path / "file", "--data-dir", tmp_path / "restored", **url).exit_code == 0
    assert call("backup", tmp_path / "lite", "--data-dir", data, "--no-encryption").exit_code == 0
    refused = call("restore", tmp_path / "lite", "--data-dir", tmp_path / "other", **url)
    assert (refused.exit_code, "Unset SANDYARD_DATABASE_URL" in refused.stderr) == (1, True)
    elsewhere = call("backup", tmp_path / "x", "--data-dir", data, SANDYARD_DATABASE_URL="sqlite:////tmp/x.db")
    assert "outside of the data directory" in elsewhere.stderr


def test_only_one_backup_runs_at_a_time(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy: Callable[..., object] = databases.copy_sqlite
    results: list[Result] = []

    def copy_and_start_another(*arguments: object) -> object:
        if not results:
            results.append(call("backup", tmp_path / "second", "--data-dir", data, "--no-encryption"))
        return copy(*arguments)

    monkeypatch.setattr(databases, "copy_sqlite", copy_and_start_another)
    assert call("backup", tmp_path / "first", "--data-dir", data, "--no-encryption").exit_code == 0
    assert "Another backup" in results[0].stderr
