"""Test Codex, OpenCode, Claude Code and Gemini CLI, the real programs from npm, in real sandboxes: from a task to a pull request, and
through failures.

Only the model is scripted. Each agent is installed once, by its first task; the other tests use the session of that task.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from sandyard.cli.live.asks import make_answer_body
from tests.acceptance.mcp_servers import COMMAND, HttpMcpServer, url_server
from tests.acceptance.project_client import ForgeProject, create_forge_project
from tests.acceptance.task_client import Task, create_task, update_settings
from tests.forge import GitHub, forge
from tests.harness.engine import Engine, serving
from tests.harness.platform import Platform, ok, running, until
from tests.models import Call, Cut, Edit, Fail, Hang, ModelServer, Read, Say, Shell, Step, Usage, Use, UseMcp

pytestmark = pytest.mark.timeout(600)
SETTINGS = {"CREATES_PER_MINUTE": "10000", "EXECUTES_PER_MINUTE": "10000", "FORGE_POLL_S": "1"}
KEY = "sk-the-real-key-that-stays-outside"
MCP_KEY = "mcp-the-servers-key-that-stays-outside"
INNER_WORD, OUTER_WORD = "gooseberry", "elderberry"
FIRST_TASK_SECONDS = 400.0
"""Timeout of a first task, because a machine with two busy cores installs and starts slowly."""
FINISHED = ("completed", "cancelled", "failed", "over_budget")

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
SHOW_CODE_AND_TESTS = "(cat app.py; python3 -m unittest -q) >/tmp/seen 2>&1; cat /tmp/seen"
"""Prints everything at once, because Codex reads output only after a command has started and may miss the first of several pieces.
Without `$(…)`, which Gemini CLI refuses."""


@dataclass(frozen=True)
class Agent:
    """`path`: the path of its model requests; `process`: a pattern that finds its process."""

    name: str
    model: str
    path: str
    process: str


OPENCODE = Agent("opencode", "scripted", "/v1/chat/completions", "opencode acp")
CODEX = Agent("codex", "gpt-5.5", "/v1/responses", "codex-acp")
CLAUDE = Agent("claude", "claude-scripted", "/v1/messages", "claude-agent-acp")
GEMINI = Agent("gemini", "gemini-scripted", "/v1beta/models/gemini-scripted:streamGenerateContent", "gemini --acp")


def _parametrize(*agents: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("agent_session", agents, indirect=True, scope="module", ids=lambda agent: agent.name)


with_agents = _parametrize(
    CODEX, *(pytest.param(agent, marks=pytest.mark.slow) for agent in (OPENCODE, CLAUDE, GEMINI))
)
"""One real agent always runs. The others are slow, because starting them takes longer than all of these tests."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with serving(DEFAULT_MEMORY_MB="2048", DEFAULT_DISK_MB="4096", POOL_SIZE="0") as engine:
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
    """A platform with four model providers, all of them the same scripted server."""
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
class AgentSession:
    """An agent that has completed its first task, and the session of that task."""

    agent: Agent
    project: ForgeProject
    task: Task
    attempt: dict[str, Any]
    models: ModelServer

    @property
    def client(self) -> httpx.Client:
        return self.project.client

    @property
    def session(self) -> str:
        return str(self.attempt["sessionId"])

    def start_turn(self, prompt: str, steps: Sequence[Step] = (), **body: Any) -> dict[str, Any]:
        """Start a turn and script the model's responses in it."""
        text = self._unique_prompt(prompt)
        self.models.script(text, steps)
        return dict(ok(self.client.post(f"/sessions/{self.session}/turns", json={"text": text, **body}), 202))

    def calls(self, prompt: str) -> list[Call]:
        """Return the model requests of that turn."""
        return self.models.list_requests(self._unique_prompt(prompt))

    def _unique_prompt(self, prompt: str) -> str:
        return f"{prompt}, {self.agent.name}"

    def wait_for_turn(self, turn: dict[str, Any], patience: float = 240) -> dict[str, Any]:
        def get_finished_turn() -> dict[str, Any] | None:
            current = ok(self.client.get(f"/turns/{turn['id']}"))
            return dict(current) if current["status"] in FINISHED else None

        return dict(until(get_finished_turn, patience))

    def run_turn(self, prompt: str, steps: Sequence[Step], **body: Any) -> dict[str, Any]:
        """Run a turn, which must succeed."""
        turn = self.wait_for_turn(self.start_turn(prompt, steps, **body))
        assert turn["status"] == "completed", (turn["error"], self.models.refused)
        return turn

    def wait_for_ask(self) -> dict[str, Any]:
        query = {"sessionId": self.session, "status": "pending"}
        (ask,) = until(lambda: ok(self.client.get("/asks", params=query))["items"], 120)
        return dict(ask)

    def execute(self, command: str) -> dict[str, Any]:
        body = {"command": f"cd workspace && {command}"}
        return dict(ok(self.client.post(f"/sandboxes/{self.attempt['sandboxId']}/execute", json=body)))

    def read_agent_text(self) -> str:
        return self.task.read_agent_text(self.session)

    def transcript(self) -> list[dict[str, Any]]:
        return self.task.read_messages(self.session)


@pytest.fixture(scope="module")
def agent_session(
    request: pytest.FixtureRequest, platform: Platform, github: GitHub, models: ModelServer
) -> AgentSession:
    agent: Agent = request.param
    return complete_first_task(agent, platform, github, models, keyword=f"addition-{agent.name}")


def complete_first_task(
    agent: Agent, platform: Platform, github: GitHub, models: ModelServer, *, keyword: str, **settings: Any
) -> AgentSession:
    """Run the first task: the agent reads the code, makes a wrong fix, gets the failed tests back, and fixes the code."""
    project = create_forge_project(platform, github, files=FILES)
    update_settings(project, verify={"command": "python3 -m unittest -q", "fixes": 2}, **settings)
    first_steps = [Read(FILE)] if agent is CLAUDE else []  # it edits only files that it has read with its own tool
    models.script(
        keyword,
        [
            *first_steps,
            Shell(SHOW_CODE_AND_TESTS, say="I look at the tests first."),
            # a different length: for a file of the same size and second, Python uses the compiled old version
            Edit(FILE, "    return a - b\n", "    return a * b * 1\n"),
            Say("It should be right now."),
            Edit(FILE, "    return a * b * 1\n", "    return a + b\n"),
            Shell("python3 -m unittest -q"),
            Say("Now the tests succeed.", usage=Usage(input=1000, output=50)),
        ],
    )
    task = create_task(project, f"Mend {keyword}\nadd() gives the wrong number.", agent=agent.name, model=agent.model)
    attempt = task.wait_until_settled(patience=FIRST_TASK_SECONDS)
    details = attempt["error"], models.refused, [step["error"] for step in attempt["steps"]]
    assert attempt["status"] == "in_review", f"{agent.name} has not completed its first task: {details}"
    return AgentSession(agent, project, task, attempt, models)


@with_agents
def test_a_task_becomes_a_pull_request(agent_session: AgentSession, github: GitHub) -> None:
    attempt, keyword = agent_session.attempt, f"addition-{agent_session.agent.name}"
    names = [step["name"] for step in attempt["steps"]]
    assert names[-3:] == ["commit", "push", "pull_request"]
    assert (names.count("agent"), names.count("verify")) == (2, 2), "the failed check must go back to the agent"
    assert attempt["verified"]
    pull = github.colleague("grace").pull(agent_session.project.slug, agent_session.task.get_pull_request()["number"])
    assert pull["state"] == "open"
    branch = pull["head"]["ref"]
    assert agent_session.project.repository.read(branch, "app.py") == b"def add(a, b):\n    return a + b\n"
    assert (attempt["diff"]["files"], attempt["diff"]["added"], attempt["diff"]["removed"]) == (1, 1, 1)

    calls = agent_session.models.list_requests(keyword)
    assert len(calls) == (7 if agent_session.agent is CLAUDE else 6)
    assert {call.path for call in calls} == {agent_session.agent.path}
    assert {call.key for call in agent_session.models.calls} == {KEY}, "the platform must add its key to every request"
    assert "rhubarb" in json.dumps(calls[0].body), "the agent must read AGENTS.md"
    sent = json.dumps(calls[-3].request.results if calls[-3].request else None) + json.dumps(calls[-3].body)
    assert "python3 -m unittest -q" in sent
    assert attempt["spent"]["inputTokens"] >= 1500
    assert attempt["spent"]["outputTokens"] >= 150
    assert attempt["spent"]["costUsd"] >= (1500 * 10 + 150 * 100) / 1e6


@pytest.mark.slow
def test_a_task_in_a_gvisor_sandbox_becomes_a_pull_request(
    platform: Platform, github: GitHub, models: ModelServer
) -> None:
    done = complete_first_task(OPENCODE, platform, github, models, keyword="addition-gvisor", isolation="gvisor")
    assert done.attempt["verified"]
    assert "gVisor" in done.execute("dmesg")["stdout"]
    pull = github.colleague("grace").pull(done.project.slug, done.task.get_pull_request()["number"])
    assert done.project.repository.read(pull["head"]["ref"], "app.py") == b"def add(a, b):\n    return a + b\n"


@with_agents
def test_the_transcript_has_all_parts_with_their_types(agent_session: AgentSession) -> None:
    parts = [part for message in agent_session.transcript() if message["role"] == "agent" for part in message["parts"]]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    for text in ("I look at the tests first.", "It should be right now.", "Now the tests succeed."):
        assert text in texts, "each text must be one part"
    tools = [part for part in parts if part["type"] == "tool_call"]
    assert {tool["status"] for tool in tools} <= {"completed", "failed"}
    kinds = ["execute", "edit", "edit", "execute"]
    assert [tool["kind"] for tool in tools] == (["read", *kinds] if agent_session.agent is CLAUDE else kinds)
    printed = json.dumps([tool["content"] for tool in tools if tool["kind"] == "execute"])
    assert "return a - b" in printed, "the transcript must show the output of commands"
    diffs = [content for tool in tools for content in tool["content"] if content["type"] == "diff"]
    assert any("return a + b" in diff["newText"] for diff in diffs)


@with_agents
def test_the_key_is_not_in_the_sandbox(agent_session: AgentSession) -> None:
    """The key is in no file that the agent can read and in no process."""
    agent_session.run_turn("say hello with the key", [Say("Hello.")])
    assert agent_session.execute(make_key_search(KEY))["stdout"] == ""


@with_agents
def test_permission_requests_are_allowed_and_rejected(agent_session: AgentSession) -> None:
    update_settings(agent_session.project, agent={"permissions": {"mode": "ask"}})
    try:
        allowed = agent_session.start_turn("touch the allowed file", [Shell("touch allowed.txt"), Say("Touched.")])
        ask = agent_session.wait_for_ask()
        assert ask["kind"] == "permission"
        assert "touch allowed.txt" in json.dumps(ask)
        assert ok(agent_session.client.get(f"/turns/{allowed['id']}"))["status"] == "waiting"
        assert agent_session.execute("ls")["stdout"].count("allowed.txt") == 0, (
            "the command must not run before it is allowed"
        )
        ok(agent_session.client.post(f"/asks/{ask['id']}/answer", json={"decision": "allow"}))
        assert agent_session.wait_for_turn(allowed)["status"] == "completed"

        refused = agent_session.start_turn("touch the refused file", [Shell("touch refused.txt"), Say("Then not.")])
        ask = agent_session.wait_for_ask()
        ok(agent_session.client.post(f"/asks/{ask['id']}/answer", json={"decision": "reject"}))
        assert agent_session.wait_for_turn(refused)["status"] in ("completed", "failed"), (
            "some agents end their turn after a refusal"
        )
        files = agent_session.execute("ls")["stdout"]
        assert "allowed.txt" in files
        assert "refused.txt" not in files
    finally:
        update_settings(agent_session.project, agent={"permissions": {"mode": "allow_all"}})


@_parametrize(pytest.param(CLAUDE, marks=pytest.mark.slow))
@pytest.mark.parametrize("answer", ["Blue", "2"])
def test_a_question_is_answered_with_a_label_or_a_number(agent_session: AgentSession, answer: str) -> None:
    """Of the four agents, only Claude Code offers a tool for questions over ACP."""
    options = [{"label": name, "description": f"{name} it is."} for name in ("Red", "Blue")]
    question = {"question": "Which colour?", "header": "Colour", "options": options, "multiSelect": False}
    prompt = f"ask for a colour and take {answer}"
    turn = agent_session.start_turn(prompt, [Use("AskUserQuestion", {"questions": [question]}), Say("So be it.")])
    ask = agent_session.wait_for_ask()
    assert (ask["kind"], "Which colour?" in json.dumps(ask)) == ("question", True)
    ok(agent_session.client.post(f"/asks/{ask['id']}/answer", json=make_answer_body(ask, answer)))
    assert agent_session.wait_for_turn(turn)["status"] == "completed"
    sent = agent_session.calls(prompt)[-1].request
    assert sent and "Blue" in json.dumps(sent.results)


@with_agents
def test_denied_files_are_not_read(agent_session: AgentSession) -> None:
    """Agents run `cat` without a permission request unless they are configured to ask."""
    agent_session.execute("echo unspeakable >hidden.txt")
    update_settings(agent_session.project, agent={"permissions": {"deny": ["hidden"]}})
    try:
        for prompt, step in (
            ("cat the file", Shell("cat hidden.txt")),
            ("read the file", Read(f"{CHECKOUT}/hidden.txt")),
        ):
            turn = agent_session.wait_for_turn(agent_session.start_turn(prompt, [step, Say("Then not.")]))
            assert turn["status"] in ("completed", "cancelled", "failed"), "some agents end their turn after a refusal"
            assert agent_session.calls(prompt), agent_session.models.refused
            assert "unspeakable" not in json.dumps([call.body for call in agent_session.calls(prompt)])
        agent_session.run_turn("read another file", [Shell("cat app.py"), Say("Read.")])
        assert "return a + b" in json.dumps(agent_session.calls("read another file")[-1].body)
    finally:
        update_settings(agent_session.project, agent={"permissions": {"mode": "allow_all", "deny": []}})


@with_agents
def test_mcp_servers_are_used_and_their_key_stays_outside_the_sandbox(agent_session: AgentSession) -> None:
    with url_server(MCP_KEY, OUTER_WORD) as server:
        add_mcp_servers(agent_session.project, server)
        first = [SEARCH] if agent_session.agent is CLAUDE else []
        agent_session.run_turn("use the tools of both servers", [*first, *MCP_STEPS])
        check_mcp_calls(agent_session.calls("use the tools of both servers"), server, agent_session.models)
        parts = [part for message in agent_session.transcript() for part in message["parts"]]
        (notice,) = [part for part in parts if part.get("code") == "mcp_server_failed"]
        assert "The MCP server broken exited with status 1." in notice["text"]
        assert notice["text"].endswith("ended with:\nNo licence found.")
        assert agent_session.execute(make_key_search(MCP_KEY))["stdout"] == ""
        tool_calls = [
            part for message in agent_session.transcript() for part in message["parts"] if part["type"] == "tool_call"
        ]
        assert {part["status"] for part in tool_calls[-2:]} == {"completed"}
        update_settings(agent_session.project, agent={"permissions": {"deny": ["outer_word"]}})
        try:
            # some agents end their turn after a refusal
            agent_session.wait_for_turn(agent_session.start_turn("use a tool as is denied", [*first, *DENIED_STEPS]))
        finally:
            update_settings(agent_session.project, agent={"permissions": {"deny": []}})
        check_denied_calls(agent_session.calls("use a tool as is denied"), agent_session.models)
    agent_session.run_turn("say what you have", [Say("Two servers.")])  # one server is gone: only its tools are lost
    for row in ok(agent_session.client.get(f"/projects/{agent_session.project.id}/mcp-servers"))["items"]:
        ok(agent_session.client.delete(f"/projects/{agent_session.project.id}/mcp-servers/{row['id']}"), 204)
    agent_session.run_turn("say what is left", [Say("None.")])
    remaining_tools = [
        tool for tool in offered_tools(agent_session.calls("say what is left")[0]) if tool.endswith("_word")
    ]
    assert not remaining_tools or agent_session.agent is CLAUDE, (
        "Claude Code continues to list tools that it found once"
    )


MCP_STEPS = [
    UseMcp("inside", "inner_word"),
    UseMcp("outside", "outer_word", {"echo": "rhubarb"}),
    Say("I have used both."),
]


SEARCH = Use("ToolSearch", {"query": "select:mcp__inside__inner_word,mcp__outside__outer_word", "max_results": 5})
"""Claude Code offers tools of MCP servers only after a search for them."""
DENIED_STEPS = [UseMcp("outside", "outer_word", {"echo": "forbidden"}), Say("Then not.")]


def add_mcp_servers(project: ForgeProject, server: HttpMcpServer) -> None:
    path = f"/projects/{project.id}/mcp-servers"
    inside = {"name": "inside", "command": "python3", "args": ["-c", COMMAND], "env": {"INNER_WORD": INNER_WORD}}
    ok(project.client.post(path, json=inside), 201)
    broken = {"name": "broken", "command": "python3", "args": ["-c", "import sys; sys.exit('No licence found.')"]}
    ok(project.client.post(path, json=broken), 201)
    outside = {"name": "outside", "url": server.url, "headers": {"X-Api-Key": MCP_KEY}, "test": True}
    created = ok(project.client.post(path, json=outside), 201)
    test_result = ok(project.client.post(f"{path}/{created['id']}/test"))
    assert (test_result["ok"], test_result["tools"]) == (True, ["outer_word"]), test_result


def check_mcp_calls(calls: list[Call], server: HttpMcpServer, models: ModelServer) -> None:
    assert len(calls) >= 3, models.refused
    sent = json.dumps([call.body for call in calls])
    assert f"the inner word is {INNER_WORD}" in sent, models.refused
    assert f"the outer word is {OUTER_WORD}, you said rhubarb" in sent, models.refused
    assert MCP_KEY not in sent, "the key must be removed even from responses of the server"
    assert set(server.keys) == {MCP_KEY}


def check_denied_calls(calls: list[Call], models: ModelServer) -> None:
    assert calls
    sent = json.dumps([call.body for call in calls])
    assert "you said forbidden" not in sent
    assert not [refused for refused in models.refused if "outer_word" in refused], "the tool must have been offered"


def offered_tools(call: Call) -> list[str]:
    return [tool.name for tool in call.request.tools] if call.request else []


def make_key_search(key: str) -> str:
    """Return a command that lists where a key is in a sandbox and does not contain the key itself."""
    split_key = key[:12] + "${x}" + key[12:]
    paths = "/home /tmp /etc /run /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
    return f'x=; key={split_key}; grep -rlsaF -- "$key" {paths}; true'


@with_agents
def test_a_turn_can_be_cancelled(agent_session: AgentSession) -> None:
    turn = agent_session.start_turn("think about it forever", [Hang("Let me think")])
    agent_session.models.wait_for(lambda _: agent_session.calls("think about it forever"), 120)
    until(lambda: "Let" in agent_session.read_agent_text())
    ok(agent_session.client.post(f"/turns/{turn['id']}/cancel"), 202)
    assert agent_session.wait_for_turn(turn)["status"] == "cancelled"
    if agent_session.agent is OPENCODE:  # Codex closes its request only when the model sends more
        agent_session.models.wait_for(lambda _: agent_session.calls("think about it forever")[0].disconnected)
    agent_session.run_turn("are you still there", [Say("I am here again.")])
    assert "I am here again." in agent_session.read_agent_text()


@with_agents
def test_a_request_to_a_failing_model_is_retried(agent_session: AgentSession) -> None:
    interruptions = [] if agent_session.agent is GEMINI else [Cut()]  # Gemini CLI gives up after a partial response
    agent_session.run_turn("stumble on your way", [Fail(500), *interruptions, Say("I have recovered.")])
    assert "I have recovered." in agent_session.read_agent_text()
    assert len(agent_session.calls("stumble on your way")) == 2 + len(interruptions)


@pytest.mark.slow  # agents retry for half a minute
@with_agents
def test_a_model_that_keeps_failing_fails_the_turn(agent_session: AgentSession) -> None:
    status = 500 if agent_session.agent is CODEX else 400  # OpenCode would retry for more than a minute
    broken = [Fail(status, "The model house is on fire.", times=None)]
    turn = agent_session.wait_for_turn(agent_session.start_turn("ask the broken model", broken))
    assert turn["status"] == "failed"
    assert len(turn["error"].split()) > 3
    assert [part for message in agent_session.transcript() for part in message["parts"] if part["type"] == "notice"]
    agent_session.run_turn("ask the mended model", [Say("It is mended.")])
    started_at = time.monotonic()
    turn = agent_session.wait_for_turn(
        agent_session.start_turn("ask with a key that ran out", [Fail(401, "No such key.", times=None)])
    )
    assert (turn["status"], turn["errorCode"]) == ("failed", "model_key_refused")
    assert "rejected the API key (401). It said: “No such key.”" in turn["error"]
    assert time.monotonic() - started_at < 15, "the turn must fail at once, because an agent would retry for minutes"
    agent_session.run_turn("ask with a new key", [Say("It fits.")])


@with_agents
def test_killing_the_agent_fails_its_turn_and_the_next_turn_works(agent_session: AgentSession) -> None:
    turn = agent_session.start_turn("die in the middle", [Hang("I feel unwell")])
    agent_session.models.wait_for(lambda _: agent_session.calls("die in the middle"), 120)
    until(lambda: "unwell" in agent_session.read_agent_text() or agent_session.agent is CODEX)
    agent_session.execute(f"pkill -9 -f '[{agent_session.agent.process[0]}]{agent_session.agent.process[1:]}'")
    failed_turn = agent_session.wait_for_turn(turn)
    assert failed_turn["status"] == "failed"
    assert "ended" in failed_turn["error"]
    agent_session.run_turn("you are back", [Say("I am back.")])
    last = agent_session.calls("you are back")[0].body
    assert f"addition-{agent_session.agent.name}" in json.dumps(last), "the agent must know the earlier session"


@with_agents
def test_a_task_over_its_budget_is_stopped(agent_session: AgentSession) -> None:
    keyword = f"expensive-{agent_session.agent.name}"
    steps = [Shell(f"echo {number}", usage=Usage(input=400, output=100)) for number in range(50)]
    agent_session.models.script(keyword, steps)
    budget = {"tokens": 1200}
    task = create_task(
        agent_session.project,
        f"Do {keyword}",
        agent=agent_session.agent.name,
        model=agent_session.agent.model,
        budget=budget,
    )
    attempt = task.wait_until_settled("failed", patience=FIRST_TASK_SECONDS)
    assert attempt["errorCode"] == "over_budget"
    (turn,) = ok(agent_session.client.get(f"/sessions/{attempt['sessionId']}/turns"))["items"]
    assert turn["status"] == "over_budget"
    assert len(agent_session.models.list_requests(keyword)) <= 4, "little may be spent beyond the budget"
    assert not any(step["name"] == "pull_request" for step in attempt["steps"])


# test_the_model_and_the_mode_can_change_between_turns in tests/integration/platform/domain/agents/test_turns.py changes it
@pytest.mark.slow
@with_agents
def test_the_model_can_be_changed_between_turns(agent_session: AgentSession) -> None:
    """OpenCode supports every provider, and can switch to another in the same session with the earlier conversation."""
    if agent_session.agent is not OPENCODE:
        agent_session.run_turn("speak to the same again", [Say("The same.")], model=agent_session.agent.model)
        return
    agent_session.run_turn("speak to the other provider", [Say("Another speaks.")], model="claude-scripted")
    call = agent_session.calls("speak to the other provider")[0]
    assert call.path == "/v1/messages"
    assert call.request
    assert call.request.model == "claude-scripted"
    assert f"addition-{agent_session.agent.name}" in json.dumps(call.body)
