"""Test forks and snapshots: independent copies of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2b import InvalidArgumentException, Sandbox, SandboxException, SandboxNotFoundException

from tests.harness.sdk import get_access_token

from .conftest import NewSandbox


@pytest.fixture
def forks() -> Iterator[list[Sandbox]]:
    created: list[Sandbox] = []
    yield created
    for fork in created:
        fork.kill()


def test_a_fork_is_independent_of_its_original(new_sandbox: NewSandbox, forks: list[Sandbox]) -> None:
    sandbox = new_sandbox(metadata={"from": "original"}, envs={"KEPT": "yes"})
    sandbox.files.write("state.txt", "before the fork")
    (fork,) = sandbox.fork(timeout=77)
    assert isinstance(fork, Sandbox)
    forks.append(fork)
    assert fork.sandbox_id != sandbox.sandbox_id
    assert get_access_token(fork) != get_access_token(sandbox)
    assert sandbox.is_running()
    assert fork.files.read("state.txt") == "before the fork"
    fork.files.write("state.txt", "changed in the fork")
    assert sandbox.files.read("state.txt") == "before the fork"
    assert fork.commands.run("echo $E2B_SANDBOX_ID $KEPT").stdout == f"{fork.sandbox_id} yes\n"
    info = fork.get_info()
    assert info.template_id == sandbox.get_info().template_id
    assert round((info.end_at - info.started_at).total_seconds()) == 77


def test_several_forks_in_one_request(sandbox: Sandbox, forks: list[Sandbox]) -> None:
    sandbox.commands.run("for i in $(seq 200); do head -c 10000 /dev/urandom > f$i; done; cat f* | sha256sum > sum")
    created = sandbox.fork(count=3)
    for fork in created:
        assert isinstance(fork, Sandbox), fork
        forks.append(fork)
    assert len({fork.sandbox_id for fork in forks} | {sandbox.sandbox_id}) == 4
    for fork in forks:
        fork.commands.run("cat f* | sha256sum | cmp - sum")


def test_forks_of_forks_by_id(sandbox: Sandbox, forks: list[Sandbox]) -> None:
    sandbox.files.write("generation", "0")
    parent = sandbox
    for generation in range(1, 4):
        (child,) = Sandbox.fork(parent.sandbox_id)
        assert isinstance(child, Sandbox)
        forks.append(child)
        assert child.files.read("generation") == str(generation - 1)
        child.files.write("generation", str(generation))
        parent = child


def test_invalid_forks_are_refused(sandbox: Sandbox, api: httpx.Client) -> None:
    route = f"/sandboxes/{sandbox.sandbox_id}/fork"
    invalid: list[object] = [{"count": 0}, {"count": -1}, {"count": 101}, {"count": "two"}, {"timeout": -1}, []]
    for body in invalid:
        assert api.post(route, json=body).status_code == 400, body
    with pytest.raises(InvalidArgumentException):
        sandbox.fork(count=0)
    sandbox.pause()
    assert api.post(route, json={}).status_code == 409
    sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.fork()


@pytest.fixture
def snapshots() -> Iterator[list[str]]:
    created: list[str] = []
    yield created
    for snapshot in created:
        Sandbox.delete_snapshot(snapshot)


def test_a_snapshot_is_used_as_a_template(sandbox: Sandbox, new_sandbox: NewSandbox, snapshots: list[str]) -> None:
    sandbox.files.write("app/config.json", '{"env": "test"}')
    sandbox.commands.run("ln -s config.json app/link; chmod 600 app/config.json; sudo rm -rf /usr/share/doc")
    snapshot = sandbox.create_snapshot()
    snapshots.append(snapshot.snapshot_id)
    sandbox.files.write("app/config.json", "changed later")
    assert sandbox.is_running()

    one, two = new_sandbox(snapshot.snapshot_id), new_sandbox(snapshot.snapshot_id)
    assert one.files.read("app/config.json") == '{"env": "test"}'
    assert one.files.get_info("app/config.json").permissions == "-rw-------"
    assert one.files.read("app/link") == '{"env": "test"}'
    assert not one.files.exists("/usr/share/doc"), "removed files must stay removed"
    one.files.write("app/config.json", "only in one")
    assert two.files.read("app/config.json") == '{"env": "test"}'
    assert one.get_info().template_id == snapshot.snapshot_id.split(":")[0]


def test_snapshot_of_a_snapshot(sandbox: Sandbox, new_sandbox: NewSandbox, snapshots: list[str]) -> None:
    current = sandbox
    for layer in range(3):
        current.files.write(f"layer{layer}", str(layer))
        snapshot = current.create_snapshot()
        snapshots.insert(0, snapshot.snapshot_id)
        current = new_sandbox(snapshot.snapshot_id)
    assert [current.files.read(f"layer{layer}") for layer in range(3)] == ["0", "1", "2"]


def test_snapshot_names_and_tags(sandbox: Sandbox, new_sandbox: NewSandbox, snapshots: list[str], unique: str) -> None:
    name = f"snap-{unique}"
    first = sandbox.create_snapshot(name=name)
    snapshots.append(first.snapshot_id)
    assert name in first.names[0]
    sandbox.files.write("second", "yes")
    retaken = sandbox.create_snapshot(name=name)
    assert retaken.snapshot_id == first.snapshot_id, "creating a snapshot with a known name must replace that snapshot"
    sandbox.files.write("second", "changed")
    tagged = sandbox.create_snapshot(name=f"{name}:v2")
    assert ":v2" in tagged.names[0]
    assert new_sandbox(name).files.read("second") == "yes"
    assert new_sandbox(f"{name}:v2").files.read("second") == "changed"
    assert Sandbox.list_snapshots(name=name).next_items()
    assert Sandbox.delete_snapshot(name) is True
    with pytest.raises(SandboxException):
        Sandbox.create(name)


def test_list_and_delete_snapshots(sandbox: Sandbox, new_sandbox: NewSandbox, snapshots: list[str]) -> None:
    created = [sandbox.create_snapshot().snapshot_id for _ in range(3)]
    snapshots += created
    assert Sandbox.create_snapshot(new_sandbox().sandbox_id).names == []

    pages = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, limit=2)
    listed = [snapshot.snapshot_id for snapshot in pages.next_items()]
    assert pages.has_next
    listed += [snapshot.snapshot_id for snapshot in pages.next_items()]
    assert not pages.has_next
    assert sorted(listed) == sorted(created)

    assert Sandbox.delete_snapshot(created[0]) is True
    assert Sandbox.delete_snapshot(created[0]) is False
    assert len(Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id).next_items()) == 2
    with pytest.raises(SandboxException):
        Sandbox.create(created[0])


def test_deleting_a_snapshot_does_not_affect_its_sandboxes(sandbox: Sandbox, new_sandbox: NewSandbox) -> None:
    sandbox.files.write("kept", "yes")
    snapshot = sandbox.create_snapshot()
    copy = new_sandbox(snapshot.snapshot_id)
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert copy.files.read("kept") == "yes"
    copy.pause(keep_memory=False)
    copy.connect()
    assert copy.files.read("kept") == "yes"


def test_invalid_snapshots_are_refused(sandbox: Sandbox, api: httpx.Client) -> None:
    with pytest.raises(SandboxNotFoundException):
        Sandbox.create_snapshot("ineverexisted00000")
    for name in ("bad name", "UPPER/..", "x" * 300, ""):
        assert api.post(f"/sandboxes/{sandbox.sandbox_id}/snapshots", json={"name": name}).status_code == 400, name
    assert api.delete("/templates/base").status_code in (400, 403, 409), (
        "clients must not be able to delete the base template"
    )
