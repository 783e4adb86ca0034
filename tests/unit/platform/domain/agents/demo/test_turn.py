"""The demo agent continues with the instructions that an interruption has left."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from sandyard.platform.domain.agents.demo.conversation import ASK, Conversation
from sandyard.platform.domain.agents.demo.peer import Peer, RpcError
from sandyard.platform.domain.agents.demo.turn import Text, Turn

ALLOWANCE = "You were denied permission before and are allowed to do this now:\n- drop\nPlease continue your work."
RESUME = Text(ALLOWANCE, personal=False, resume=True)


class User:
    """Answers permission requests and records what the agent says."""

    def __init__(self) -> None:
        self.option = "reject"
        self.text = ""

    def request(self, method: str, params: dict[str, Any], cancelled: object) -> dict[str, Any]:
        return {"outcome": {"outcome": "selected", "optionId": self.option}}

    def notify(self, method: str, params: dict[str, Any]) -> None:
        update = params["update"]
        if update["sessionUpdate"] == "agent_message_chunk":
            self.text += update["content"]["text"]

    def wake(self) -> None: ...


@pytest.fixture
def user() -> User:
    return User()


@pytest.fixture
def conversation(user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conversation:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    return Conversation(cast(Peer, user), str(tmp_path / "work"))


def list_files(conversation: Conversation) -> list[str]:
    return sorted(path.name for path in Path(conversation.folder).iterdir())


def send(conversation: Conversation, *texts: Text) -> str:
    return Turn(conversation, {}).run(list(texts))


def test_instructions_after_a_denied_one_are_followed_when_it_is_allowed(
    conversation: Conversation, user: User
) -> None:
    send(conversation, Text("create a: 1\npermit: drop\ncreate b: 2"))
    assert list_files(conversation) == ["a"]
    (Path(conversation.folder) / "a").write_text("changed since\n")
    reopened = Conversation(cast(Peer, user), conversation.folder, conversation.name)
    reopened.recall(replay=False)
    user.option = "allow"
    send(reopened, RESUME)
    assert list_files(reopened) == ["a", "b"]
    assert (Path(reopened.folder) / "a").read_text() == "changed since\n"
    user.text = ""
    send(reopened, RESUME)
    assert "no instructions left" in user.text
    assert list_files(reopened) == ["a", "b"]


def test_a_failed_turn_continues_after_the_instruction_that_failed(conversation: Conversation) -> None:
    with pytest.raises(RpcError):
        send(conversation, Text("create a: 1\nfail: no\ncreate b: 2"))
    send(conversation, RESUME)
    assert list_files(conversation) == ["a", "b"]


def test_new_instructions_replace_those_that_are_left(conversation: Conversation) -> None:
    send(conversation, Text("permit: drop\ncreate a: 1"))
    send(conversation, Text("create b: 2"))
    send(conversation, RESUME)
    assert list_files(conversation) == ["b"]


def test_instructions_in_a_message_for_a_retry_come_after_those_that_are_left(
    conversation: Conversation, user: User
) -> None:
    send(conversation, Text("permit: drop\ncreate a: 1"))
    user.option = "allow"
    send(conversation, RESUME, Text("append a: 2"))
    assert (Path(conversation.folder) / "a").read_text() == "1\n2\n"


@pytest.mark.parametrize("text", [RESUME, Text("user: fix the bug\nagent: done", personal=False)])
def test_the_platforms_prompts_are_not_written_to_a_file(conversation: Conversation, text: Text) -> None:
    send(conversation, text)
    assert list_files(conversation) == []


def test_prose_is_written_to_a_file_when_that_is_allowed(conversation: Conversation, user: User) -> None:
    conversation.change_mode(ASK)
    send(conversation, Text("a summary", personal=False), Text("Make it nice."))
    assert list_files(conversation) == []
    user.option = "allow"
    send(conversation, RESUME)
    assert (Path(conversation.folder) / "DEMO.md").read_text().endswith("> Make it nice.\n")
