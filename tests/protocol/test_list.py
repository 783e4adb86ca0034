"""Test listing sandboxes: order, pages, filters."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest
from e2b import Sandbox, SandboxQuery, SandboxState

from .conftest import NewSandbox


def list_ids(query: SandboxQuery, **options: object) -> list[str]:
    sandbox_ids: list[str] = []
    pages = Sandbox.list(query=query, **options)  # type: ignore[arg-type]
    while pages.has_next:
        sandbox_ids += [sandbox.sandbox_id for sandbox in pages.next_items()]
    return sandbox_ids


@pytest.fixture
def three_sandboxes(new_sandbox: NewSandbox, unique: str) -> tuple[list[str], dict[str, str]]:
    """Three sandboxes, oldest first, and the metadata that only they have."""
    metadata = {"run": unique}
    return [new_sandbox(metadata=metadata).sandbox_id for _ in range(3)], metadata


def test_order_is_newest_first_or_oldest_first(three_sandboxes: tuple[list[str], dict[str, str]]) -> None:
    created, metadata = three_sandboxes
    assert list_ids(SandboxQuery(metadata=metadata)) == created[::-1]
    assert list_ids(SandboxQuery(metadata=metadata), order="desc") == created[::-1]
    assert list_ids(SandboxQuery(metadata=metadata), order="asc") == created


def test_list_pages(three_sandboxes: tuple[list[str], dict[str, str]]) -> None:
    created, metadata = three_sandboxes
    pages = Sandbox.list(query=SandboxQuery(metadata=metadata), limit=2)
    assert [sandbox.sandbox_id for sandbox in pages.next_items()] == [created[2], created[1]]
    assert pages.has_next
    assert pages.next_token
    assert [sandbox.sandbox_id for sandbox in pages.next_items()] == [created[0]]
    assert not pages.has_next
    assert pages.next_token is None
    assert list_ids(SandboxQuery(metadata=metadata), limit=1, order="asc") == created


def test_list_has_no_next_page_after_a_full_last_page(three_sandboxes: tuple[list[str], dict[str, str]]) -> None:
    _, metadata = three_sandboxes
    pages = Sandbox.list(query=SandboxQuery(metadata=metadata), limit=3)
    assert len(pages.next_items()) == 3
    assert not pages.has_next


def test_pages_are_stable_while_sandboxes_are_created_and_killed(
    three_sandboxes: tuple[list[str], dict[str, str]], new_sandbox: NewSandbox
) -> None:
    created, metadata = three_sandboxes
    pages = Sandbox.list(query=SandboxQuery(metadata=metadata), limit=1)
    assert pages.next_items()[0].sandbox_id == created[2]
    new_sandbox(metadata=metadata)
    Sandbox.kill(created[2])
    assert pages.next_items()[0].sandbox_id == created[1]
    assert pages.next_items()[0].sandbox_id == created[0]
    assert not pages.has_next


def test_filter_by_state(three_sandboxes: tuple[list[str], dict[str, str]]) -> None:
    created, metadata = three_sandboxes
    Sandbox.pause(created[1])
    assert list_ids(SandboxQuery(metadata=metadata)) == created[::-1], (
        "both states must be listed, ordered by start time"
    )
    assert list_ids(SandboxQuery(metadata=metadata, state=[SandboxState.PAUSED])) == [created[1]]
    assert list_ids(SandboxQuery(metadata=metadata, state=[SandboxState.RUNNING])) == [created[2], created[0]]
    both = [SandboxState.RUNNING, SandboxState.PAUSED]
    assert list_ids(SandboxQuery(metadata=metadata, state=both), limit=1) == created[::-1]


def test_a_listed_sandbox_has_the_same_info_as_get_info(sandbox: Sandbox) -> None:
    listed = next(item for item in Sandbox.list().next_items() if item.sandbox_id == sandbox.sandbox_id)
    info = sandbox.get_info()
    for name in ("template_id", "started_at", "end_at", "cpu_count", "memory_mb", "state", "envd_version", "metadata"):
        assert getattr(listed, name) == getattr(info, name), name


def test_filter_by_metadata_with_special_characters(new_sandbox: NewSandbox, unique: str) -> None:
    metadata = {"a key=with&signs": f"ünï {unique} & 100% + /?#", "plain": unique}
    sandbox = new_sandbox(metadata=metadata)
    assert list_ids(SandboxQuery(metadata=metadata)) == [sandbox.sandbox_id]
    assert list_ids(SandboxQuery(metadata={"plain": unique})) == [sandbox.sandbox_id]
    assert list_ids(SandboxQuery(metadata={"plain": unique, "absent": "x"})) == []
    assert sandbox.get_info().metadata == metadata


def test_filter_by_metadata_encoded_once(new_sandbox: NewSandbox, api: httpx.Client, unique: str) -> None:
    sandbox = new_sandbox(metadata={"plain": unique})
    response = api.get("/v2/sandboxes", params={"metadata": f"plain={unique}"})
    assert [item["sandboxID"] for item in response.json()] == [sandbox.sandbox_id]


def test_filter_by_start_time_and_template(sandbox: Sandbox) -> None:
    info = sandbox.get_info()
    assert sandbox.sandbox_id in list_ids(SandboxQuery(started_after=info.started_at))
    assert sandbox.sandbox_id not in list_ids(SandboxQuery(started_after=info.started_at + timedelta(seconds=1)))
    assert sandbox.sandbox_id in list_ids(SandboxQuery(template=info.template_id))
    assert list_ids(SandboxQuery(template="unknown-template")) == []


def test_the_total_header_counts_all_matching_sandboxes(
    three_sandboxes: tuple[list[str], dict[str, str]], api: httpx.Client, unique: str
) -> None:
    response = api.get("/v2/sandboxes", params={"metadata": f"run={unique}", "state": "running", "limit": 1})
    assert len(response.json()) == 1
    assert response.headers["x-total-running"] == "3"


def test_v1_lists_only_running_sandboxes(
    three_sandboxes: tuple[list[str], dict[str, str]], api: httpx.Client, unique: str
) -> None:
    created, _ = three_sandboxes
    Sandbox.pause(created[0])
    response = api.get("/sandboxes", params={"metadata": f"run={unique}"})
    assert response.status_code == 200
    assert [item["sandboxID"] for item in response.json()] == [created[2], created[1]]


@pytest.mark.parametrize(
    "parameters",
    [
        {"limit": "0"},
        {"limit": "-1"},
        {"limit": "101"},
        {"limit": "many"},
        {"state": "asleep"},
        {"order": "sideways"},
        {"startedAfter": "yesterday"},
        {"nextToken": "not-a-token"},
    ],
    ids=str,
)
def test_invalid_queries_are_refused(api: httpx.Client, parameters: dict[str, str]) -> None:
    response = api.get("/v2/sandboxes", params=parameters)
    assert response.status_code == 400, response.text
    assert response.json()["code"] == 400


def test_killed_sandboxes_are_not_listed(sandbox: Sandbox) -> None:
    sandbox.kill()
    assert sandbox.sandbox_id not in list_ids(SandboxQuery())
