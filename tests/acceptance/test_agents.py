"""Codex, OpenCode, Claude Code and Gemini CLI, the real programs from npm, in real sandboxes: from a card to a pull request, and
through what can go wrong.

Only their model is scripted. Each is installed once, by the first task; what can go wrong is tried in the session that it leaves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from sandyard.cli.live.asks import make_body
from tests.acceptance.board import Card, add, configure
from tests.acceptance.conftest import serving
from tests.acceptance.mcp_servers import COMMAND, UrlServer, url_server
from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import Work, work
from tests.forge import GitHub, forge
from tests.models import Call, Cut, Edit, Fail, Hang, ModelServer, Read, Say, Shell, Step, Usage, Use, UseMcp
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(600)
SETTINGS = {"CREATES_PER_MINUTE": "10000", "EXECUTES_PER_MINUTE": "10000", "FORGE_POLL_S": "1"}
KEY = "sk-the-real-key-that-stays-outside"
MCP_KEY = "mcp-the-servers-key-that-stays-outside"
INNER_WORD, OUTER_WORD = "gooseberry", "elderberry"
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
CHECKOUT = "/home/user/workspace"
FILE = f"{CHECKOUT}/app.py"
LOOK = "(cat app.py; python3 -m unittest -q) >/tmp/seen 2>&1; cat /tmp/seen"
"""Prints all at once: Codex listens only after a command has started, and may miss the first of several pieces. Without `$(…)`, which
Gemini CLI refuses."""


@dataclass(frozen=True)
class Agent:
    """`path`: where it asks that model; `process`: how its process is found."""

    name: str
    model: str
    path: str
    process: str


OPENCODE = Agent("opencode", "scripted", "/v1/chat/completions", "opencode acp")
CODEX = Agent("codex", "gpt-5.5", "/v1/responses", "codex-acp")
CLAUDE = Agent("claude", "claude-scripted", "/v1/messages", "claude-agent-acp")
GEMINI = Agent("gemini", "gemini-scripted", "/v1beta/models/gemini-scripted:streamGenerateContent", "gemini --acp")


def _with(*agents: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("desk", agents, indirect=True, scope="module", ids=lambda agent: agent.name)


with_agents = _with(CODEX, *(pytest.param(agent, marks=pytest.mark.slow) for agent in (OPENCODE, CLAUDE, GEMINI)))
"""One real agent always; the others, which take longer to start than all of these tests, in the long run."""


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
    """With four providers, all of them the same scripted server."""
    price = {"input": 10, "output": 100}
    kinds = {
        "openai": "gpt-5.5",
        "openai_chat": "scripted",
        "anthropic": "claude-scripted",
        "gemini": "gemini-scripted",
    }
    with running(engine, **SETTINGS) as platform:
        for kind, model in kinds.items():
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
    look = [Read(FILE)] if agent is CLAUDE else []  # it edits only what it has read with its own tool
    models.script(
        word,
        [
            *look,
            Shell(LOOK, say="I look at the tests first."),
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


@with_agents
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
    assert len(calls) == (7 if desk.agent is CLAUDE else 6)
    assert {call.path for call in calls} == {desk.agent.path}
    assert {call.key for call in desk.models.calls} == {KEY}, "the platform has put its key in, everywhere"
    assert "rhubarb" in json.dumps(calls[0].body), "it has read AGENTS.md"
    told = json.dumps(calls[-3].asked.results if calls[-3].asked else None) + json.dumps(calls[-3].body)
    assert "python3 -m unittest -q" in told
    assert attempt["spent"]["inputTokens"] >= 1500
    assert attempt["spent"]["outputTokens"] >= 150
    assert attempt["spent"]["costUsd"] >= (1500 * 10 + 150 * 100) / 1e6


@with_agents
def test_its_transcript_is_typed_and_has_all(desk: Desk) -> None:
    parts = [part for message in desk.transcript() if message["role"] == "agent" for part in message["parts"]]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    for text in ("I look at the tests first.", "It should be right now.", "Now the tests succeed."):
        assert text in texts, "text that belongs together is one part"
    tools = [part for part in parts if part["type"] == "tool_call"]
    assert {tool["status"] for tool in tools} <= {"completed", "failed"}
    kinds = ["execute", "edit", "edit", "execute"]
    assert [tool["kind"] for tool in tools] == (["read", *kinds] if desk.agent is CLAUDE else kinds)
    printed = json.dumps([tool["content"] for tool in tools if tool["kind"] == "execute"])
    assert "return a - b" in printed, "people see what a command printed"
    diffs = [content for tool in tools for content in tool["content"] if content["type"] == "diff"]
    assert any("return a + b" in diff["newText"] for diff in diffs)


@with_agents
def test_the_key_is_not_in_the_sandbox(desk: Desk) -> None:
    """Not in any file that the agent may read, nor in any process."""
    desk.does("say hello with the key", [Say("Hello.")])
    assert desk.execute(find_key(KEY))["stdout"] == ""


@with_agents
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


@_with(pytest.param(CLAUDE, marks=pytest.mark.slow))
@pytest.mark.parametrize("answer", ["Blue", "2"])
def test_a_question_is_answered_as_the_cli_takes_it(desk: Desk, answer: str) -> None:
    """Of the four, only Claude Code has a tool for questions that it offers over ACP."""
    options = [{"label": name, "description": f"{name} it is."} for name in ("Red", "Blue")]
    question = {"question": "Which colour?", "header": "Colour", "options": options, "multiSelect": False}
    words = f"ask for a colour and take {answer}"
    turn = desk.prompt(words, [Use("AskUserQuestion", {"questions": [question]}), Say("So be it.")])
    ask = desk.ask()
    assert (ask["kind"], "Which colour?" in json.dumps(ask)) == ("question", True)
    ok(desk.client.post(f"/asks/{ask['id']}/answer", json=make_body(ask, answer)))
    assert desk.over(turn)["status"] == "completed"
    told = desk.calls(words)[-1].asked
    assert told and "Blue" in json.dumps(told.results)


@with_agents
def test_what_is_denied_is_not_even_read(desk: Desk) -> None:
    """Agents run `cat` without asking anybody, unless they are made to ask."""
    desk.execute("echo unspeakable >hidden.txt")
    configure(desk.project, agent={"permissions": {"deny": ["hidden"]}})
    try:
        for words, step in (
            ("cat the file", Shell("cat hidden.txt")),
            ("read the file", Read(f"{CHECKOUT}/hidden.txt")),
        ):
            turn = desk.over(desk.prompt(words, [step, Say("Then not.")]))
            assert turn["status"] in ("completed", "cancelled", "failed"), "some agents end their turn then"
            assert desk.calls(words), desk.models.refused
            assert "unspeakable" not in json.dumps([call.body for call in desk.calls(words)])
        desk.does("read another file", [Shell("cat app.py"), Say("Read.")])
        assert "return a + b" in json.dumps(desk.calls("read another file")[-1].body)
    finally:
        configure(desk.project, agent={"permissions": {"mode": "allow_all", "deny": []}})


@with_agents
def test_mcp_servers_are_used_and_their_key_stays_outside(desk: Desk) -> None:
    with url_server(MCP_KEY, OUTER_WORD) as server:
        give_mcp_servers(desk.project, server)
        first = [SEARCH] if desk.agent is CLAUDE else []
        desk.does("use the tools of both servers", [*first, *MCP_STEPS])
        look_at_mcp(desk.calls("use the tools of both servers"), server, desk.models)
        assert desk.execute(find_key(MCP_KEY))["stdout"] == ""
        used = [part for message in desk.transcript() for part in message["parts"] if part["type"] == "tool_call"]
        assert {part["status"] for part in used[-2:]} == {"completed"}
        configure(desk.project, agent={"permissions": {"deny": ["outer_word"]}})
        try:
            desk.over(
                desk.prompt("use a tool as is denied", [*first, *DENIED_STEPS])
            )  # some agents end their turn then
        finally:
            configure(desk.project, agent={"permissions": {"deny": []}})
        look_at_denied(desk.calls("use a tool as is denied"), desk.models)
    desk.does("say what you have", [Say("Two servers.")])  # one of which is gone: nothing but its tools is lost
    for one in ok(desk.client.get(f"/projects/{desk.project.id}/mcp-servers"))["items"]:
        ok(desk.client.delete(f"/projects/{desk.project.id}/mcp-servers/{one['id']}"), 204)
    desk.does("say what is left", [Say("None.")])
    left = [tool for tool in offered(desk.calls("say what is left")[0]) if tool.endswith("_word")]
    assert not left or desk.agent is CLAUDE, "which goes on to name the tools that it has once found"


MCP_STEPS = [
    UseMcp("inside", "inner_word"),
    UseMcp("outside", "outer_word", {"echo": "rhubarb"}),
    Say("I have used both."),
]


SEARCH = Use("ToolSearch", {"query": "select:mcp__inside__inner_word,mcp__outside__outer_word", "max_results": 5})
"""Claude Code offers tools of MCP servers only when they were searched for."""
DENIED_STEPS = [UseMcp("outside", "outer_word", {"echo": "forbidden"}), Say("Then not.")]


def give_mcp_servers(project: Work, server: UrlServer) -> None:
    path = f"/projects/{project.id}/mcp-servers"
    inside = {"name": "inside", "command": "python3", "args": ["-c", COMMAND], "env": {"INNER_WORD": INNER_WORD}}
    ok(project.client.post(path, json=inside), 201)
    outside = {"name": "outside", "url": server.url, "headers": {"X-Api-Key": MCP_KEY}, "test": True}
    made = ok(project.client.post(path, json=outside), 201)
    found = ok(project.client.post(f"{path}/{made['id']}/test"))
    assert (found["ok"], found["tools"]) == (True, ["outer_word"]), found


def look_at_mcp(calls: list[Call], server: UrlServer, models: ModelServer) -> None:
    assert len(calls) >= 3, models.refused
    told = json.dumps([call.body for call in calls])
    assert f"the inner word is {INNER_WORD}" in told, models.refused
    assert f"the outer word is {OUTER_WORD}, you said rhubarb" in told, models.refused
    assert MCP_KEY not in told, "not even if the server says it"
    assert set(server.keys) == {MCP_KEY}


def look_at_denied(calls: list[Call], models: ModelServer) -> None:
    assert calls
    told = json.dumps([call.body for call in calls])
    assert "you said forbidden" not in told
    assert not [refused for refused in models.refused if "outer_word" in refused], "it was offered"


def offered(call: Call) -> list[str]:
    return [tool.name for tool in call.asked.tools] if call.asked else []


def find_key(key: str) -> str:
    """A command that says where a key is in a sandbox, and has not got it in its own words."""
    hidden = key[:12] + "${x}" + key[12:]
    places = "/home /tmp /etc /run /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
    return f'x=; key={hidden}; grep -rlsaF -- "$key" {places}; true'


@with_agents
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


@with_agents
def test_a_model_that_stumbles_is_asked_again(desk: Desk) -> None:
    cut = [] if desk.agent is GEMINI else [Cut()]  # which gives up when half an answer has come
    desk.does("stumble on your way", [Fail(500), *cut, Say("I have recovered.")])
    assert "I have recovered." in desk.said()
    assert len(desk.calls("stumble on your way")) == 2 + len(cut)


@pytest.mark.slow  # agents take half a minute to give up
@with_agents
def test_a_model_that_stays_broken_fails_the_turn(desk: Desk) -> None:
    status = 500 if desk.agent is CODEX else 400  # OpenCode would try for more than a minute
    broken = [Fail(status, "The model house is on fire.", times=None)]
    turn = desk.over(desk.prompt("ask the broken model", broken))
    assert turn["status"] == "failed"
    assert len(turn["error"].split()) > 3
    assert [part for message in desk.transcript() for part in message["parts"] if part["type"] == "notice"]
    desk.does("ask the mended model", [Say("It is mended.")])
    began = time.monotonic()
    turn = desk.over(desk.prompt("ask with a key that ran out", [Fail(401, "No such key.", times=None)]))
    assert (turn["status"], turn["errorCode"]) == ("failed", "model_key_refused")
    assert "rejected the API key (401). It said: No such key." in turn["error"]
    assert time.monotonic() - began < 15, "an agent would try for minutes"
    desk.does("ask with a new key", [Say("It fits.")])


@with_agents
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


@with_agents
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


@with_agents
def test_the_model_is_changed_between_turns(desk: Desk) -> None:
    """OpenCode speaks to every provider: to the next one in the same session, with what was said before."""
    if desk.agent is not OPENCODE:
        desk.does("speak to the same again", [Say("The same.")], model=desk.agent.model)
        return
    desk.does("speak to the other provider", [Say("Another speaks.")], model="claude-scripted")
    call = desk.calls("speak to the other provider")[0]
    assert call.path == "/v1/messages"
    assert call.asked
    assert call.asked.model == "claude-scripted"
    assert f"addition-{desk.agent.name}" in json.dumps(call.body)
