"""Watching directories, by stream and by polling."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine.guest.client import Client, RpcFailureError

Dial = Callable[[], Client]
FS = "filesystem.Filesystem/"


class PolledWatcher:
    """A watcher that is polled."""

    def __init__(self, client: Client, path: str, **options: Any) -> None:
        self.client = client
        self.id = client.call(FS + "CreateWatcher", {"path": path, **options})["watcherId"]
        self.seen: list[tuple[str, str]] = []
        self.entries: list[dict[str, Any]] = []

    def poll(self) -> None:
        for event in self.client.call(FS + "GetWatcherEvents", {"watcherId": self.id})["events"]:
            self.seen.append((event["name"], event["type"].removeprefix("EVENT_TYPE_")))
            self.entries.append(event)

    def until(self, *expected: tuple[str, str]) -> list[tuple[str, str]]:
        deadline = time.monotonic() + 10
        while not set(expected) <= set(self.seen):
            assert time.monotonic() < deadline, f"{expected} not in {self.seen}"
            self.poll()
            time.sleep(0.005)
        return self.seen


def test_changes_to_files_are_reported(client: Client, home: Path) -> None:
    watcher = PolledWatcher(client, "~")
    watcher.poll()
    assert watcher.seen == []
    (home / "f").write_text("x")
    (home / "f").chmod(0o600)
    (home / "f").rename(home / "g")
    (home / "g").unlink()
    watcher.until(("g", "REMOVE"))
    assert watcher.seen == [
        ("f", "CREATE"), ("f", "WRITE"), ("f", "CHMOD"), ("f", "RENAME"), ("g", "CREATE"), ("g", "REMOVE"),
    ]  # fmt: skip


def test_an_upload_is_reported_as_create_and_write(client: Client, home: Path) -> None:
    watcher = PolledWatcher(client, "/home/user")
    headers = {"Content-Type": "application/octet-stream"}
    client.request("POST", "/files?path=up.txt", b"hello", headers)
    assert watcher.until(("up.txt", "WRITE"))[0] == ("up.txt", "CREATE")
    watcher.seen.clear()
    client.request("POST", "/files?path=up.txt", b"again", headers)
    watcher.until(("up.txt", "WRITE"))
    assert {kind for _, kind in watcher.seen} <= {"WRITE", "CHMOD"}


def test_only_the_directory_itself_is_watched_unless_recursive(client: Client, home: Path) -> None:
    (home / "sub").mkdir()
    flat, deep = PolledWatcher(client, "~"), PolledWatcher(client, "~", recursive=True)
    (home / "sub/inner").write_text("x")
    (home / "end").touch()
    flat.until(("end", "CREATE"))
    deep.until(("end", "CREATE"))
    assert flat.seen[0] == ("end", "CREATE")
    assert ("sub/inner", "WRITE") in deep.seen


def test_new_directories_are_watched_with_their_contents(client: Client, home: Path) -> None:
    watcher = PolledWatcher(client, "~", recursive=True)
    for number in range(10):
        (home / f"n{number}/m/o").mkdir(parents=True)
        (home / f"n{number}/m/o/file").write_text("x")
        watcher.until((f"n{number}", "CREATE"), (f"n{number}/m", "CREATE"), (f"n{number}/m/o", "CREATE"))
        watcher.until((f"n{number}/m/o/file", "CREATE"), (f"n{number}/m/o/file", "WRITE"))
    created = [name for name, kind in watcher.seen if kind == "CREATE"]
    assert len(created) == len(set(created)) == 40, "every creation must be reported once"


def test_directories_are_followed_until_they_leave_the_watched_tree(client: Client, home: Path, tmp_path: Path) -> None:
    (home / "here").mkdir()
    watcher = PolledWatcher(client, "~", recursive=True)
    (home / "here").rename(home / "there")
    (home / "there/x").touch()
    watcher.until(("here", "RENAME"), ("there", "CREATE"), ("there/x", "CREATE"))
    (home / "there").rename(home.parent / "gone")
    (home.parent / "gone/y").touch()
    (home / "last").touch()
    watcher.until(("last", "CREATE"))
    assert not [name for name, _ in watcher.seen if name.endswith("/y")]
    (home.parent / "gone/x").unlink()
    (home.parent / "gone/y").unlink()
    (home.parent / "gone").rmdir()


def test_events_include_entries_on_request(client: Client, home: Path) -> None:
    watcher = PolledWatcher(client, "~", includeEntry=True)
    (home / "f").write_text("hello")
    watcher.until(("f", "WRITE"))
    (home / "f").unlink()
    watcher.until(("f", "REMOVE"))
    kinds = {event["type"]: event for event in watcher.entries}
    assert "entry" not in kinds["EVENT_TYPE_REMOVE"]
    described = [event["entry"] for event in watcher.entries if "entry" in event]
    assert all(entry["path"] == "/home/user/f" for entry in described)


def test_the_removal_of_the_watched_directory_is_reported(client: Client, home: Path) -> None:
    (home / "doomed").mkdir()
    watcher = PolledWatcher(client, "doomed")
    (home / "doomed").rmdir()
    assert watcher.until((".", "REMOVE"))


def open_watch(client: Client, **message: Any) -> Iterator[dict[str, Any]]:
    events = client.open_stream(FS + "WatchDir", message, {"Keepalive-Ping-Interval": "1"})
    assert next(events) == {"start": {}}
    return events


def test_events_are_streamed(dial: Dial, home: Path) -> None:
    events = open_watch(dial(), path="~", recursive=True)
    (home / "a").mkdir()
    (home / "a/b").write_text("x")
    seen = []
    for event in events:
        if "filesystem" in event:
            seen.append((event["filesystem"]["name"], event["filesystem"]["type"]))
        if ("a/b", "EVENT_TYPE_WRITE") in seen:
            break
    assert seen[0] == ("a", "EVENT_TYPE_CREATE")
    # the file is created empty and then written, which may be two events
    while "filesystem" in (event := next(events)):
        assert event["filesystem"] == {"name": "a/b", "type": "EVENT_TYPE_WRITE"}
    assert event == {"keepalive": {}}


def test_a_watch_ends_at_its_deadline(client: Client, home: Path) -> None:
    events = client.open_stream(FS + "WatchDir", {"path": "~"}, {"Connect-Timeout-Ms": "150"})
    with pytest.raises(RpcFailureError) as failure:
        list(events)
    assert failure.value.code == "deadline_exceeded"


def test_a_watch_ends_with_its_client(dial: Dial, home: Path) -> None:
    pid = dial().shell("echo $PPID").stdout.strip()

    def count_watches() -> int:
        count = 0
        for info in Path(f"/proc/{pid}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):
                count += "inotify" in info.read_text()
        return count

    before = count_watches()
    clients = [dial() for _ in range(5)]
    for client in clients:
        open_watch(client, path="~")
    assert count_watches() == before + 5
    for client in clients:
        client.close()
    deadline = time.monotonic() + 10
    while count_watches() > before:
        assert time.monotonic() < deadline, "all watches must be removed"
        time.sleep(0.01)


def test_invalid_paths_cannot_be_watched(client: Client, home: Path) -> None:
    (home / "file").touch()
    for path, code in (("missing", "not_found"), ("file", "invalid_argument"), ("~x/y", "invalid_argument")):
        with pytest.raises(RpcFailureError) as failure:
            list(client.open_stream(FS + "WatchDir", {"path": path}))
        assert failure.value.code == code
        with pytest.raises(RpcFailureError) as failure:
            client.call(FS + "CreateWatcher", {"path": path})
        assert failure.value.code == code


def test_a_removed_watcher_is_not_found(client: Client, home: Path) -> None:
    watcher = PolledWatcher(client, "~")
    assert client.call(FS + "RemoveWatcher", {"watcherId": watcher.id}) == {}
    for method in ("GetWatcherEvents", "RemoveWatcher"):
        with pytest.raises(RpcFailureError) as failure:
            client.call(FS + method, {"watcherId": watcher.id})
        assert failure.value.code == "not_found"


def test_too_many_events_end_the_watcher_and_not_the_agent(client: Client, home: Path) -> None:
    """The kernel keeps at most 16,384 records; a loss is reported."""
    watcher = PolledWatcher(client, "~")
    client.shell("i=0; while [ $i -lt 40000 ]; do : > f$((i % 50)); i=$((i + 1)); done", process={"cwd": "~"})
    watcher.poll()
    assert len(watcher.seen) > 1000
    assert client.request("GET", "/health").status == 204
