"""Test watching directories by polling for events, as the sync SDK does; the async and JavaScript SDKs stream them."""

from __future__ import annotations

import pytest
from e2b import FileNotFoundException, FilesystemEvent, FilesystemEventType, FileType, Sandbox, SandboxException

from .conftest import DataPlane
from .waiting import until

CREATE, WRITE, REMOVE, RENAME, CHMOD = (
    FilesystemEventType.CREATE,
    FilesystemEventType.WRITE,
    FilesystemEventType.REMOVE,
    FilesystemEventType.RENAME,
    FilesystemEventType.CHMOD,
)


def types_and_names(events: list[FilesystemEvent]) -> list[tuple[FilesystemEventType, str]]:
    return [(event.type, event.name) for event in events]


def test_a_new_file_causes_three_events(sandbox: Sandbox) -> None:
    """The SDK's own tests count the events right after the write."""
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched")
    assert handle.get_new_events() == []
    sandbox.files.write("watched/note.txt", "new")
    events = handle.get_new_events()
    assert types_and_names(events)[0] == (CREATE, "note.txt")
    assert sorted(kind.value for kind, _ in types_and_names(events)) == sorted([CREATE.value, CHMOD.value, WRITE.value])
    assert handle.get_new_events() == []
    handle.stop()


def test_overwriting_causes_a_write_event(sandbox: Sandbox) -> None:
    sandbox.files.write("watched/note.txt", "old")
    handle = sandbox.files.watch_dir("watched")
    sandbox.files.write("watched/note.txt", "new")
    assert (WRITE, "note.txt") in types_and_names(handle.get_new_events())


def test_remove_rename_and_chmod_events(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched")
    sandbox.commands.run("touch a b c", cwd="watched")
    handle = sandbox.files.watch_dir("watched")
    sandbox.commands.run("chmod 600 a; rm b; mv c d", cwd="watched")
    events = types_and_names(handle.get_new_events())
    for expected in ((CHMOD, "a"), (REMOVE, "b"), (RENAME, "c"), (CREATE, "d")):
        assert expected in events


def test_changes_by_commands_cause_events(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched")
    sandbox.commands.run("echo x > /home/user/watched/by-hand", user="root")
    assert (WRITE, "by-hand") in types_and_names(handle.get_new_events())


def test_only_the_directory_itself_unless_recursive(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched/below")
    flat = sandbox.files.watch_dir("watched")
    deep = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.write("watched/below/note.txt", "x")
    assert flat.get_new_events() == []
    events = types_and_names(deep.get_new_events())
    assert len(events) == 3
    assert events[0] == (CREATE, "below/note.txt")


def test_directories_created_later_are_watched(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.make_dir("watched/late")
    sandbox.files.write("watched/late/note.txt", "x")
    events = types_and_names(handle.get_new_events())
    assert (CREATE, "late") in events
    assert (WRITE, "late/note.txt") in events


def test_a_directory_tree_created_at_once_is_watched(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.commands.run("mkdir -p watched/a/b/c && echo x > watched/a/b/c/deep")
    until(lambda: (CREATE, "a") in types_and_names(handle.get_new_events()))
    sandbox.commands.run("echo more >> watched/a/b/c/deep")
    until(lambda: (WRITE, "a/b/c/deep") in types_and_names(handle.get_new_events()))


def test_events_can_include_their_entry(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched", include_entry=True)
    sandbox.files.write("watched/note.txt", "new")
    event = next(event for event in handle.get_new_events() if event.type == WRITE)
    assert event.entry is not None
    assert (event.entry.name, event.entry.type) == ("note.txt", FileType.FILE)
    assert event.entry.path == "/home/user/watched/note.txt"


def test_the_network_mounts_option_has_no_effect(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched", allow_network_mounts=True)
    sandbox.files.write("watched/note.txt", "new")
    assert (WRITE, "note.txt") in types_and_names(handle.get_new_events())


def test_watching_a_missing_path_or_a_file_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir("nowhere")
    sandbox.files.write("plain", "x")
    with pytest.raises(SandboxException):
        sandbox.files.watch_dir("plain")


def test_a_removed_watcher_is_not_found(sandbox: Sandbox, data_plane: DataPlane) -> None:
    created = data_plane(sandbox).post("/filesystem.Filesystem/CreateWatcher", json={"path": "/tmp"})
    watcher = {"watcherId": created.json()["watcherId"]}
    events_route = "/filesystem.Filesystem/GetWatcherEvents"
    assert data_plane(sandbox).post(events_route, json=watcher).status_code == 200
    assert data_plane(sandbox).post("/filesystem.Filesystem/RemoveWatcher", json=watcher).status_code == 200
    gone = data_plane(sandbox).post(events_route, json=watcher)
    assert gone.status_code == 404
    assert gone.json()["code"] == "not_found"
