"""Listing sandboxes: order, pages, filters."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest
from e2b import Sandbox, SandboxQuery, SandboxState

from .conftest import NewSandbox


def ids(query: SandboxQuery, **options: object) -> list[str]:
    found: list[str] = []
    pages = Sandbox.list(query=query, **options)  # type: ignore[arg-type]
    while pages.has_next:
        found += [sandbox.sandbox_id for sandbox in pages.next_items()]
    return found


@pytest.fixture
def three(new_sandbox: NewSandbox, unique: str) -> tuple[list[str], dict[str, str]]:
    """Three sandboxes, oldest first, and the metadata only they have."""
    mark = {"run": unique}
    return [new_sandbox(metadata=mark).sandbox_id for _ in range(3)], mark


def test_newest_first_and_the_other_way_round(three: tuple[list[str], dict[str, str]]) -> None:
    made, mark = three
    assert ids(SandboxQuery(metadata=mark)) == made[::-1]
    assert ids(SandboxQuery(metadata=mark), order="desc") == made[::-1]
    assert ids(SandboxQuery(metadata=mark), order="asc") == made


def test_pages(three: tuple[list[str], dict[str, str]]) -> None:
    made, mark = three
    pages = Sandbox.list(query=SandboxQuery(metadata=mark), limit=2)
    assert [sandbox.sandbox_id for sandbox in pages.next_items()] == [made[2], made[1]]
    assert pages.has_next
    assert pages.next_token
    assert [sandbox.sandbox_id for sandbox in pages.next_items()] == [made[0]]
    assert not pages.has_next
    assert pages.next_token is None
    assert ids(SandboxQuery(metadata=mark), limit=1, order="asc") == made


def test_a_full_last_page_promises_no_more(three: tuple[list[str], dict[str, str]]) -> None:
    _, mark = three
    pages = Sandbox.list(query=SandboxQuery(metadata=mark), limit=3)
    assert len(pages.next_items()) == 3
    assert not pages.has_next


def test_pages_hold_still_while_sandboxes_come_and_go(
    three: tuple[list[str], dict[str, str]], new_sandbox: NewSandbox
) -> None:
    made, mark = three
    pages = Sandbox.list(query=SandboxQuery(metadata=mark), limit=1)
    assert pages.next_items()[0].sandbox_id == made[2]
    new_sandbox(metadata=mark)
    Sandbox.kill(made[2])
    assert pages.next_items()[0].sandbox_id == made[1]
    assert pages.next_items()[0].sandbox_id == made[0]
    assert not pages.has_next


def test_states(three: tuple[list[str], dict[str, str]]) -> None:
    made, mark = three
    Sandbox.pause(made[1])
    assert ids(SandboxQuery(metadata=mark)) == made[::-1], "both states are listed, in the order of their start"
    assert ids(SandboxQuery(metadata=mark, state=[SandboxState.PAUSED])) == [made[1]]
    assert ids(SandboxQuery(metadata=mark, state=[SandboxState.RUNNING])) == [made[2], made[0]]
    both = [SandboxState.RUNNING, SandboxState.PAUSED]
    assert ids(SandboxQuery(metadata=mark, state=both), limit=1) == made[::-1]


def test_what_a_listed_sandbox_says(sandbox: Sandbox) -> None:
    listed = next(item for item in Sandbox.list().next_items() if item.sandbox_id == sandbox.sandbox_id)
    info = sandbox.get_info()
    for name in ("template_id", "started_at", "end_at", "cpu_count", "memory_mb", "state", "envd_version", "metadata"):
        assert getattr(listed, name) == getattr(info, name), name


def test_metadata_with_every_kind_of_character(new_sandbox: NewSandbox, unique: str) -> None:
    mark = {"a key=with&signs": f"ünï {unique} & 100% + /?#", "plain": unique}
    sandbox = new_sandbox(metadata=mark)
    assert ids(SandboxQuery(metadata=mark)) == [sandbox.sandbox_id]
    assert ids(SandboxQuery(metadata={"plain": unique})) == [sandbox.sandbox_id]
    assert ids(SandboxQuery(metadata={"plain": unique, "absent": "x"})) == []
    assert sandbox.get_info().metadata == mark


def test_metadata_encoded_once(new_sandbox: NewSandbox, api: httpx.Client, unique: str) -> None:
    sandbox = new_sandbox(metadata={"plain": unique})
    answer = api.get("/v2/sandboxes", params={"metadata": f"plain={unique}"})
    assert [item["sandboxID"] for item in answer.json()] == [sandbox.sandbox_id]


def test_started_after_and_template(sandbox: Sandbox) -> None:
    info = sandbox.get_info()
    assert sandbox.sandbox_id in ids(SandboxQuery(started_after=info.started_at))
    assert sandbox.sandbox_id not in ids(SandboxQuery(started_after=info.started_at + timedelta(seconds=1)))
    assert sandbox.sandbox_id in ids(SandboxQuery(template=info.template_id))
    assert ids(SandboxQuery(template="unknown-template")) == []


def test_total_header_counts_what_the_filter_finds(
    three: tuple[list[str], dict[str, str]], api: httpx.Client, unique: str
) -> None:
    answer = api.get("/v2/sandboxes", params={"metadata": f"run={unique}", "state": "running", "limit": 1})
    assert len(answer.json()) == 1
    assert answer.headers["x-total-running"] == "3"


def test_v1_lists_what_runs(three: tuple[list[str], dict[str, str]], api: httpx.Client, unique: str) -> None:
    made, _ = three
    Sandbox.pause(made[0])
    answer = api.get("/sandboxes", params={"metadata": f"run={unique}"})
    assert answer.status_code == 200
    assert [item["sandboxID"] for item in answer.json()] == [made[2], made[1]]


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
def test_bad_questions(api: httpx.Client, parameters: dict[str, str]) -> None:
    answer = api.get("/v2/sandboxes", params=parameters)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == 400


def test_killed_sandboxes_are_gone_from_the_list(sandbox: Sandbox) -> None:
    sandbox.kill()
    assert sandbox.sandbox_id not in ids(SandboxQuery())
