"""OpenCode and Codex, the real programs from npm, in real sandboxes: from a card to a pull request, and through what can go wrong.

Only their model is scripted. Each is installed once, by the first task; what can go wrong is tried in the session that it leaves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.acceptance.board import Card, add, configure
from tests.acceptance.conftest import serving
from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import Work, work
from tests.forge import GitHub, forge
from tests.models import Call, Cut, Edit, Fail, Hang, ModelServer, Read, Say, Shell, Step, Usage
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(600)
SETTINGS = {"CREATES_PER_MINUTE": "10000", "EXECUTES_PER_MINUTE": "10000", "FORGE_POLL_S": "1"}
KEY = "sk-the-real-key-that-stays-outside"
SLOW = 400.0
"""Seconds for a first task: a machine with two busy cores installs and starts slowly."""
OVER = ("completed", "cancelled", "failed", "over_budget")

CODE = "def add(a, b):\n    return a - b\n"
TESTS = "import unittest\nfrom app import add\n\n\nclass T(unittest.TestCase):\n    def test(self):\n        assert add(2, 3) == 5\n"
FILES = {
    ".gitignore": "__pycache__/\n",
    "app.py": CODE,
    "test_app.py": TESTS,
    "AGENTS.md": "Speak plainly. The word of the house is rhubarb.\n",
}
FILE = "/home/user/workspace/app.py"


@dataclass(frozen=True)
class Agent:
    """`path`: where it asks that model; `process`: how its process is found."""

    name: str
    model: str
    path: str
    process: str


OPENCODE = Agent("opencode", "scripted", "/v1/chat/completions", "opencode acp")
CODEX = Agent("codex", "gpt-5.5", "/v1/responses", "codex-acp")


def _with(*agents: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("desk", agents, indirect=True, scope="module", ids=lambda agent: agent.name)


with_both = _with(CODEX, OPENCODE)
mostly_with_codex = _with(CODEX, pytest.param(OPENCODE, marks=pytest.mark.slow))
"""For what is the platform's doing, not the agent's: with the other only in the long run."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with serving(DEFAULT_MEMORY_MB="2048", DEFAULT_DISK_MB="4096", POOL_SIZE="2") as engine:
        yield engine


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer(keys=[KEY]) as models:
        yield models


@pytest.fixture(scope="module")
def platform(engine: Engine, models: ModelServer) -> Iterator[Platform]:
    """With three providers, all of them the same scripted server."""
    price = {"input": 10, "output": 100}
    with running(engine, **SETTINGS) as platform:
        for kind, model in (("openai", "gpt-5.5"), ("openai_chat", "scripted"), ("anthropic", "claude-scripted")):
            body = {"name": kind, "kind": kind, "baseUrl": models.url, "key": KEY, "models": [model]}
            ok(platform.client.post("/model-providers", json={**body, "prices": {model: price}}), 201)
        yield platform


@dataclass
class Desk:
    """An agent that has done its first task, and the session it did it in."""

    agent: Agent
    project: Work
    card: Card
    attempt: dict[str, Any]
    models: ModelServer

    @property
    def client(self) -> httpx.Client:
        return self.project.client

    @property
    def session(self) -> str:
        return str(self.attempt["sessionId"])

    def prompt(self, words: str, steps: Sequence[Step] = (), **body: Any) -> dict[str, Any]:
        """A turn, and what the model is to do in it."""
        text = self._own(words)
        self.models.script(text, steps)
        return dict(ok(self.client.post(f"/sessions/{self.session}/turns", json={"text": text, **body}), 202))

    def calls(self, words: str) -> list[Call]:
        """What the model was asked in that turn."""
        return self.models.asked(self._own(words))

    def _own(self, words: str) -> str:
        return f"{words}, {self.agent.name}"

    def over(self, turn: dict[str, Any], patience: float = 240) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            now = ok(self.client.get(f"/turns/{turn['id']}"))
            return dict(now) if now["status"] in OVER else None

        return dict(until(look, patience))

    def does(self, words: str, steps: Sequence[Step], **body: Any) -> dict[str, Any]:
        """A turn that must succeed."""
        turn = self.over(self.prompt(words, steps, **body))
        assert turn["status"] == "completed", (turn["error"], self.models.refused)
        return turn

    def ask(self) -> dict[str, Any]:
        query = {"sessionId": self.session, "status": "pending"}
        (only,) = until(lambda: ok(self.client.get("/asks", params=query))["items"], 120)
        return dict(only)

    def execute(self, command: str) -> dict[str, Any]:
        body = {"command": f"cd workspace && {command}"}
        return dict(ok(self.client.post(f"/sandboxes/{self.attempt['sandboxId']}/execute", json=body)))

    def said(self) -> str:
        return self.card.said(self.session)

    def transcript(self) -> list[dict[str, Any]]:
        return self.card.messages(self.session)


@pytest.fixture(scope="module")
def desk(request: pytest.FixtureRequest, platform: Platform, github: GitHub, models: ModelServer) -> Desk:
    """The first task: the agent looks, mends it wrongly, is told so by the project's tests, and mends it."""
    agent: Agent = request.param
    project = work(platform, github, files=FILES)
    configure(project, verify={"command": "python3 -m unittest -q", "fixes": 2})
    word = f"addition-{agent.name}"
    models.script(
        word,
        [
            Shell("cat app.py && python3 -m unittest -q", say="I look at the tests first."),
            # another length: Python takes a file of the same size and second for the one it has compiled
            Edit(FILE, "    return a - b\n", "    return a * b * 1\n"),
            Say("It should be right now."),
            Edit(FILE, "    return a * b * 1\n", "    return a + b\n"),
            Shell("python3 -m unittest -q"),
            Say("Now the tests succeed.", usage=Usage(input=1000, output=50)),
        ],
    )
    card = add(project, f"Mend {word}\nadd() gives the wrong number.", agent=agent.name, model=agent.model)
    attempt = card.rests(patience=SLOW)
    trouble = attempt["error"], models.refused, [step["error"] for step in attempt["steps"]]
    assert attempt["status"] == "in_review", f"{agent.name} has not done its first task: {trouble}"
    return Desk(agent, project, card, attempt, models)


@with_both
def test_a_card_becomes_a_pull_request(desk: Desk, github: GitHub) -> None:
    attempt, word = desk.attempt, f"addition-{desk.agent.name}"
    names = [step["name"] for step in attempt["steps"]]
    assert names[-3:] == ["commit", "push", "pull_request"]
    assert (names.count("agent"), names.count("verify")) == (2, 2), "the wrong mend went back to the agent"
    assert attempt["verified"]
    pull = github.colleague("grace").pull(desk.project.slug, desk.card.pull()["number"])
    assert pull["state"] == "open"
    branch = pull["head"]["ref"]
    assert desk.project.repository.read(branch, "app.py") == b"def add(a, b):\n    return a + b\n"
    assert (attempt["diff"]["files"], attempt["diff"]["added"], attempt["diff"]["removed"]) == (1, 1, 1)

    calls = desk.models.asked(word)
    assert len(calls) == 6
    assert {call.path for call in calls} == {desk.agent.path}
    assert {call.key for call in desk.models.calls} == {KEY}, "the platform has put its key in, everywhere"
    assert "rhubarb" in json.dumps(calls[0].body), "it has read AGENTS.md"
    told = json.dumps(calls[3].asked.results if calls[3].asked else None) + json.dumps(calls[3].body)
    assert "python3 -m unittest -q" in told
    assert attempt["spent"]["inputTokens"] >= 1500
    assert attempt["spent"]["outputTokens"] >= 150
    assert attempt["spent"]["costUsd"] >= (1500 * 10 + 150 * 100) / 1e6


@with_both
def test_its_transcript_is_typed_and_has_all(desk: Desk) -> None:
    parts = [part for message in desk.transcript() if message["role"] == "agent" for part in message["parts"]]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    for text in ("I look at the tests first.", "It should be right now.", "Now the tests succeed."):
        assert text in texts, "text that belongs together is one part"
    tools = [part for part in parts if part["type"] == "tool_call"]
    assert len(tools) == 4
    assert {tool["status"] for tool in tools} <= {"completed", "failed"}
    assert [tool["kind"] for tool in tools] == ["execute", "edit", "edit", "execute"]
    diffs = [content for tool in tools for content in tool["content"] if content["type"] == "diff"]
    assert any("return a + b" in diff["newText"] for diff in diffs)


@with_both
def test_the_key_is_not_in_the_sandbox(desk: Desk) -> None:
    """Not in any file that the agent may read, nor in any process."""
    desk.does("say hello with the key", [Say("Hello.")])
    hidden = KEY[:12] + "${x}" + KEY[12:]
    look = (
        f'x=; key={hidden}; grep -rlsaF -- "$key" /home /tmp /etc /run /proc/[0-9]*/environ /proc/[0-9]*/cmdline; true'
    )
    assert desk.execute(look)["stdout"] == ""


@with_both
def test_a_permission_is_asked_for_and_refused(desk: Desk) -> None:
    configure(desk.project, agent={"permissions": {"mode": "ask"}})
    try:
        allowed = desk.prompt("touch the allowed file", [Shell("touch allowed.txt"), Say("Touched.")])
        ask = desk.ask()
        assert ask["kind"] == "permission"
        assert "touch allowed.txt" in json.dumps(ask)
        assert ok(desk.client.get(f"/turns/{allowed['id']}"))["status"] == "waiting"
        assert desk.execute("ls")["stdout"].count("allowed.txt") == 0, "not before somebody has said so"
        ok(desk.client.post(f"/asks/{ask['id']}/answer", json={"decision": "allow"}))
        assert desk.over(allowed)["status"] == "completed"

        refused = desk.prompt("touch the refused file", [Shell("touch refused.txt"), Say("Then not.")])
        ask = desk.ask()
        ok(desk.client.post(f"/asks/{ask['id']}/answer", json={"decision": "reject"}))
        assert desk.over(refused)["status"] in ("completed", "failed"), "some agents end their turn then"
        files = desk.execute("ls")["stdout"]
        assert "allowed.txt" in files
        assert "refused.txt" not in files
    finally:
        configure(desk.project, agent={"permissions": {"mode": "allow_all"}})


@mostly_with_codex
def test_what_is_denied_is_not_even_read(desk: Desk) -> None:
    """Agents run `cat` without asking anybody, unless they are made to ask."""
    desk.execute("echo unspeakable >hidden.txt")
    configure(desk.project, agent={"permissions": {"deny": ["hidden"]}})
    try:
        turn = desk.over(desk.prompt("read the hidden file", [Shell("cat hidden.txt"), Say("Then not.")]))
        assert turn["status"] in ("completed", "cancelled", "failed"), "some agents end their turn then"
        assert desk.calls("read the hidden file"), desk.models.refused
        assert "unspeakable" not in json.dumps([call.body for call in desk.calls("read the hidden file")])
        desk.does("read another file", [Shell("cat app.py"), Say("Read.")])
        assert "return a + b" in json.dumps(desk.calls("read another file")[-1].body)
    finally:
        configure(desk.project, agent={"permissions": {"mode": "allow_all", "deny": []}})


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "model"), [("claude", "claude-scripted"), ("gemini", "gemini-scripted")])
def test_what_is_denied_is_not_read_by_others_either(
    platform: Platform, github: GitHub, models: ModelServer, agent: str, model: str
) -> None:
    if agent == "gemini":
        body = {"name": "gemini", "kind": "gemini", "baseUrl": models.url, "key": KEY, "models": [model]}
        ok(platform.client.post("/model-providers", json=body), 201)
    project = work(platform, github, files={**FILES, "hidden.txt": "unspeakable\n"})
    configure(project, agent={"permissions": {"deny": ["hidden"]}})
    word = f"the hidden file of {agent}"
    path = "/home/user/workspace/hidden.txt"
    models.script(word, [Shell("cat hidden.txt"), Read(path), Shell("cat app.py"), Say("Done.")])
    card = add(project, f"Read {word}", agent=agent, model=model)
    card.rests(patience=SLOW)
    calls = models.asked(word)
    assert len(calls) >= 4, (models.refused, card.get()["error"], card.attempt()["steps"])
    told = json.dumps([call.body for call in calls])
    assert "unspeakable" not in told
    assert "return a - b" in told, "what is not denied is done"


@mostly_with_codex
def test_it_is_cancelled_in_mid_turn(desk: Desk) -> None:
    turn = desk.prompt("think about it forever", [Hang("Let me think")])
    desk.models.wait_for(lambda _: desk.calls("think about it forever"), 120)
    until(lambda: "Let" in desk.said())
    ok(desk.client.post(f"/turns/{turn['id']}/cancel"), 202)
    assert desk.over(turn)["status"] == "cancelled"
    if desk.agent is OPENCODE:  # Codex lets go of its model only when that says something more
        desk.models.wait_for(lambda _: desk.calls("think about it forever")[0].gone)
    desk.does("are you still there", [Say("I am here again.")])
    assert "I am here again." in desk.said()


@mostly_with_codex
def test_a_model_that_stumbles_is_asked_again(desk: Desk) -> None:
    desk.does("stumble on your way", [Fail(500), Cut(), Say("I have recovered.")])
    assert "I have recovered." in desk.said()
    assert len(desk.calls("stumble on your way")) == 3


@mostly_with_codex
def test_a_model_that_stays_broken_fails_the_turn(desk: Desk) -> None:
    status = 500 if desk.agent is CODEX else 400  # OpenCode would try for more than a minute
    broken = [Fail(status, "The model house is on fire.", times=None)]
    turn = desk.over(desk.prompt("ask the broken model", broken))
    assert turn["status"] == "failed"
    assert len(turn["error"].split()) > 3
    assert [part for message in desk.transcript() for part in message["parts"] if part["type"] == "notice"]
    desk.does("ask the mended model", [Say("It is mended.")])


@mostly_with_codex
def test_an_agent_that_is_killed_fails_its_turn_and_comes_back(desk: Desk) -> None:
    turn = desk.prompt("die in the middle", [Hang("I feel unwell")])
    desk.models.wait_for(lambda _: desk.calls("die in the middle"), 120)
    until(lambda: "unwell" in desk.said() or desk.agent is CODEX)
    desk.execute(f"pkill -9 -f '[{desk.agent.process[0]}]{desk.agent.process[1:]}'")
    ended = desk.over(turn)
    assert ended["status"] == "failed"
    assert "ended" in ended["error"]
    desk.does("you are back", [Say("I am back.")])
    last = desk.calls("you are back")[0].body
    assert f"addition-{desk.agent.name}" in json.dumps(last), "it remembers the session, or was told of it"


@mostly_with_codex
def test_a_task_that_spends_too_much_is_stopped(desk: Desk) -> None:
    word = f"expensive-{desk.agent.name}"
    steps = [Shell(f"echo {number}", usage=Usage(input=400, output=100)) for number in range(50)]
    desk.models.script(word, steps)
    budget = {"tokens": 1200}
    card = add(desk.project, f"Do {word}", agent=desk.agent.name, model=desk.agent.model, budget=budget)
    attempt = card.rests("failed", patience=SLOW)
    assert attempt["errorCode"] == "over_budget"
    (turn,) = ok(desk.client.get(f"/sessions/{attempt['sessionId']}/turns"))["items"]
    assert turn["status"] == "over_budget"
    assert len(desk.models.asked(word)) <= 4, "not much is spent beyond the limit"
    assert not any(step["name"] == "pull_request" for step in attempt["steps"])


@with_both
def test_the_model_is_changed_between_turns(desk: Desk) -> None:
    """OpenCode speaks to every provider: to the next one in the same session, with what was said before."""
    if desk.agent is CODEX:
        desk.does("speak to the same again", [Say("The same.")], model="gpt-5.5")
        return
    desk.does("speak to the other provider", [Say("Another speaks.")], model="claude-scripted")
    call = desk.calls("speak to the other provider")[0]
    assert call.path == "/v1/messages"
    assert call.asked
    assert call.asked.model == "claude-scripted"
    assert f"addition-{desk.agent.name}" in json.dumps(call.body)
