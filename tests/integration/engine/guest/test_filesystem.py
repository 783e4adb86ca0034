"""The service filesystem.Filesystem, except watching."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.guest.config import GuestConfig
from sandyard.engine.guest.files import service
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.wire.connect import RpcError
from tests.integration.engine.guest.client import Client, GuestAgent, RpcFailureError

FS = "filesystem.Filesystem/"


def error_code(client: Client, method: str, message: dict[str, Any]) -> str:
    with pytest.raises(RpcFailureError) as failure:
        client.call(FS + method, message)
    return failure.value.code


def test_an_entry_has_all_fields(client: Client, home: Path) -> None:
    target = home / "file.txt"
    target.write_text("Hello, World!")
    target.chmod(0o640)
    os.utime(target, ns=(0, 1_700_000_000_123_000_000))
    assert client.call(FS + "Stat", {"path": "file.txt"})["entry"] == {
        "name": "file.txt", "type": "FILE_TYPE_FILE", "path": "/home/user/file.txt", "size": "13", "mode": 0o640,
        "permissions": "-rw-r-----", "owner": "user", "group": "user", "modifiedTime": "2023-11-14T22:13:20.123Z",
    }  # fmt: skip


def test_links_are_resolved_and_marked(client: Client, home: Path) -> None:
    (home / "file").write_text("x")
    (home / "file").chmod(0o600)
    (home / "folder").mkdir()
    for name, target in (("to-file", "file"), ("to-folder", "folder"), ("broken", "nothing"), ("loop", "loop")):
        (home / name).symlink_to(target)
    (home / "chain").symlink_to("to-file")
    entries = {entry["name"]: entry for entry in client.call(FS + "ListDir", {"path": "."})["entries"]}
    assert [entries[name]["type"] for name in ("to-file", "to-folder", "broken", "loop", "chain")] == [
        "FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY", "FILE_TYPE_UNSPECIFIED", "FILE_TYPE_UNSPECIFIED", "FILE_TYPE_FILE",
    ]  # fmt: skip
    assert all(entries[name]["isSymlink"] for name in ("to-file", "to-folder", "broken", "loop", "chain"))
    assert "isSymlink" not in entries["file"]
    assert entries["chain"]["symlinkTarget"] == "/home/user/file"
    assert (entries["to-file"]["mode"], entries["to-file"]["permissions"]) == (0o600, "Lrwxrwxrwx")
    assert entries["broken"]["symlinkTarget"] == "/home/user/broken"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0o1777, "dtrwxrwxrwx"), (0o2755, "dgrwxr-xr-x"), (0o700, "drwx------"), (0o000, "d---------")],
)
def test_permissions_of_directories_are_shown(client: Client, home: Path, mode: int, expected: str) -> None:
    (home / "d").mkdir()
    (home / "d").chmod(mode)
    entry = client.call(FS + "Stat", {"path": "d/"})["entry"]
    assert (entry["permissions"], entry["mode"], entry["name"]) == (expected, mode & 0o777, "d")
    (home / "d").chmod(0o700)


def test_a_listing_is_sorted_and_limited_by_depth(client: Client, home: Path) -> None:
    for path in ("b/c/d.txt", "b/a.txt", "a.txt"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).touch()

    def names(**message: Any) -> list[str]:
        entries = client.call(FS + "ListDir", {"path": "~", **message})["entries"]
        return [entry["path"].removeprefix("/home/user/") for entry in entries]

    assert names() == names(depth=0) == names(depth=1) == ["a.txt", "b"]
    assert names(depth=2) == ["a.txt", "b", "b/a.txt", "b/c"]
    assert names(depth=3) == names(depth=9) == ["a.txt", "b", "b/a.txt", "b/c", "b/c/d.txt"]
    (home / "link").symlink_to("b")
    listed = client.call(FS + "ListDir", {"path": "link"})["entries"]
    assert [entry["path"] for entry in listed] == ["/home/user/link/a.txt", "/home/user/link/c"]


def test_invalid_paths_cannot_be_listed(client: Client, home: Path) -> None:
    (home / "file").touch()
    (home / "loop").symlink_to("loop")
    assert error_code(client, "ListDir", {"path": "missing"}) == "not_found"
    assert error_code(client, "ListDir", {"path": "file"}) == "invalid_argument"
    assert error_code(client, "ListDir", {"path": "loop"}) == "failed_precondition"
    assert error_code(client, "ListDir", {"path": "~", "depth": "x"}) == "invalid_argument"
    assert error_code(client, "Stat", {"path": "missing"}) == "not_found"
    assert error_code(client, "Stat", {"path": "file/below"}) == "not_found"
    assert error_code(client, "Stat", {"path": "a\0b"}) == "invalid_argument"


def test_names_that_are_not_valid_text_are_replaced(client: Client, home: Path) -> None:
    Path(os.fsdecode(os.fsencode(home) + b"/caf\xe9")).touch()
    assert [entry["name"] for entry in client.call(FS + "ListDir", {"path": "~"})["entries"]] == ["caf\ufffd"]


def test_make_dir_creates_parents_and_rejects_existing_paths(client: Client, home: Path) -> None:
    entry = client.call(FS + "MakeDir", {"path": "new/deep/er"})["entry"]
    assert (entry["type"], entry["path"], entry["mode"]) == ("FILE_TYPE_DIRECTORY", "/home/user/new/deep/er", 0o755)
    assert (home / "new/deep/er").is_dir()
    assert error_code(client, "MakeDir", {"path": "new"}) == "already_exists"
    (home / "file").touch()
    assert error_code(client, "MakeDir", {"path": "file"}) == "invalid_argument"
    assert error_code(client, "MakeDir", {"path": "file/x"}) == "internal"


def test_move_creates_parents_and_rejects_invalid_moves(client: Client, home: Path) -> None:
    (home / "old").write_text("x")
    entry = client.call(FS + "Move", {"source": "old", "destination": "not/yet/there"})["entry"]
    assert entry["path"] == "/home/user/not/yet/there"
    assert (home / "not/yet/there").read_text() == "x"
    assert not (home / "old").exists()
    assert error_code(client, "Move", {"source": "old", "destination": "elsewhere/x"}) == "not_found"
    assert not (home / "elsewhere").exists()
    (home / "folder").mkdir()
    assert error_code(client, "Move", {"source": "folder", "destination": "folder/inside"}) == "internal"
    (home / "dangling").symlink_to("nowhere")
    client.call(FS + "Move", {"source": "dangling", "destination": "moved"})
    assert (home / "moved").is_symlink()


def test_remove_deletes_trees_without_following_links(client: Client, home: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").touch()
    (home / "tree/a/b").mkdir(parents=True)
    (home / "tree/out").symlink_to(tmp_path / "outside")
    (home / "tree/a/loop").symlink_to(".")
    os.mkfifo(home / "tree/fifo")
    for number in range(1000):
        (home / f"tree/a/{number}").touch()
    client.call(FS + "Remove", {"path": "tree"})
    assert not (home / "tree").exists()
    assert (tmp_path / "outside" / "precious").exists()
    (home / "link").symlink_to(tmp_path / "outside")
    client.call(FS + "Remove", {"path": "link"})
    assert (tmp_path / "outside" / "precious").exists()
    client.call(FS + "Remove", {"path": "never/was"})


def test_long_listings_and_removals_do_not_block_other_clients(client: Client, agent: GuestAgent, home: Path) -> None:
    for number in range(40):
        (home / f"wide/{number}").mkdir(parents=True)
        for inner in range(100):
            (home / f"wide/{number}/{inner}").touch()
    other = agent.client()
    other.send(
        "POST", "/filesystem.Filesystem/ListDir", b'{"path": "wide", "depth": 2}', {"Content-Type": "application/json"}
    )
    slowest = 0.0
    for _ in range(20):
        started = time.monotonic()
        assert client.request("GET", "/health").status == 204
        slowest = max(slowest, time.monotonic() - started)
    assert len(other.read_response().json["entries"]) == 40 * 101
    other.send("POST", "/filesystem.Filesystem/Remove", b'{"path": "wide"}', {"Content-Type": "application/json"})
    for _ in range(20):
        started = time.monotonic()
        assert client.request("GET", "/health").status == 204
        slowest = max(slowest, time.monotonic() - started)
    assert other.read_response().status == 200
    assert slowest < 5.0
    other.close()


def test_owners_without_a_name_are_shown_as_numbers(client: Client, home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (home / "foreign").touch()
    os.chown(home / "foreign", 54321, 54322)
    entry = client.call(FS + "Stat", {"path": "foreign"})["entry"]
    assert (entry["owner"], entry["group"]) == ("54321", "54322")
    assert pwd.getpwuid(os.geteuid())


def test_deeply_nested_directories_can_be_listed_and_removed(client: Client, home: Path) -> None:
    folder = str(home)
    for _ in range(1100):
        folder += "/d"
        os.mkdir(folder)  # noqa: PTH102 (a path that pathlib would split a thousand times)
    assert len(client.call(FS + "ListDir", {"path": "~", "depth": 2000})["entries"]) == 1100
    client.call(FS + "Remove", {"path": "d"})
    assert not (home / "d").exists()


async def test_a_listing_is_limited_in_entries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = service.FilesystemService(Sandbox(GuestConfig(root=str(tmp_path))))
    for number in range(3):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(service, "MAX_ENTRIES", 3)
    assert len(json.loads(await files.list_directory("/", 1))["entries"]) == 3
    (tmp_path / "4").touch()
    with pytest.raises(RpcError, match="more than 100,000 entries"):
        await files.list_directory("/", 1)


async def test_a_listing_is_limited_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = service.FilesystemService(Sandbox(GuestConfig(root=str(tmp_path))))
    for number in range(10):
        (tmp_path / (str(number) * 250)).touch()
    size = len(await files.list_directory("/", 1))
    monkeypatch.setattr(service, "MAX_RESPONSE_BYTES", size)
    assert len(await files.list_directory("/", 1)) == size
    monkeypatch.setattr(service, "MAX_RESPONSE_BYTES", size // 2)
    with pytest.raises(RpcError, match="names are too long"):
        await files.list_directory("/", 1)


async def test_a_listing_can_be_read_in_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = service.FilesystemService(Sandbox(GuestConfig(root=str(tmp_path))))
    for folder in "ab":
        (tmp_path / folder).mkdir()
        for number in range(3):
            (tmp_path / folder / str(number)).touch()
    everything = json.loads(await files.list_directory("/", 2))["entries"]
    assert len(everything) == 8

    async def pages(limit: int) -> list[list[str]]:
        found, first = [], 0
        while first is not None:
            page = json.loads(await files.list_directory("/", 2, first, limit))
            found.append(page["entries"])
            first = page["next"]
        return found

    assert await pages(8) == [everything]
    assert await pages(3) == [everything[:3], everything[3:6], everything[6:]]
    monkeypatch.setattr(service, "PAGE_BYTES", 1)
    assert await pages(8) == [[item] for item in everything]


def test_a_page_is_requested_with_headers(client: Client, home: Path) -> None:
    for name in "abc":
        (home / name).touch()
    headers = {"Content-Type": "application/json", "X-Sandyard-List-First": "1", "X-Sandyard-List-Limit": "1"}
    page = client.request("POST", "/" + FS + "ListDir", b'{"path": "~"}', headers).json
    assert ([entry["name"] for entry in page["entries"]], page["next"]) == (["b"], 2)
    headers["X-Sandyard-List-Limit"] = "many"
    assert client.request("POST", "/" + FS + "ListDir", b'{"path": "~"}', headers).status == 400
