"""`sandyard agent doctor`, with working agents, broken agents, and the example of the guide."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.agents.profiles.model import LaunchRequest
from tests.harness.processes import ROOT
from tests.harness.up import Installation
from tests.unit.cli.server import Reply, Server

GREET = """import json
line = json.loads(input())
print(json.dumps({"id": line["id"], "result": {"protocolVersion": %s}}), flush=True)
"""


def examine(*command: str) -> Result:
    return CliRunner().invoke(cli, ["agent", "doctor", "--timeout", "20", *command])


def write_program(path: Path, code: str) -> tuple[str, str]:
    path.write_text(code)
    return sys.executable, str(path)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example agent of the guide."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/agents.md").read_text(), re.DOTALL)
    path = tmp_path / "note_agent.py"
    path.write_text(code)
    return path


def test_an_agent_with_all_features_passes(tmp_path: Path) -> None:
    launch = BUILT_IN["demo"].launch(LaunchRequest(str(tmp_path), str(tmp_path)))
    for name, content in launch.files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    done = CliRunner().invoke(cli, ["agent", "doctor", "-o", "json", sys.executable, *launch.argv[1:]])
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    found = {finding["name"]: finding["ok"] for finding in report["findings"]}
    assert found.pop("mcp") is False, "the demo agent does not use MCP servers"
    assert found == dict.fromkeys(
        (
            "initialize",
            "session/new",
            "session/prompt",
            "session/cancel",
            "modes",
            "permissions",
            "session/resume",
            "end",
        ),
        True,
    )


def test_the_example_of_the_guide_passes(example: Path) -> None:
    done = examine(sys.executable, str(example))
    assert done.exit_code == 0, done.output
    assert "✓ session/prompt: replied 'I have written it down in NOTE.md.' (end_turn)" in done.output
    assert "! mcp: does not support MCP servers with a URL" in done.output
    assert "! session/load: can neither load nor resume a session" in done.output


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "print('Welcome!')\ninput()",
            "not a JSON-RPC message: 'Welcome!\\n'. Use standard output only for the protocol",
        ),
        (
            "import sys; sys.stderr.write('no key\\x1b[31m'); sys.exit(3)",
            "ended with exit code 3 before answering initialize",
        ),
        (GREET % 7, "uses version '7'"),
        (GREET % 1 + "input()\nprint(json.dumps({'id': 2, 'result': {}}), flush=True)", "has no sessionId"),
    ],
)
def test_a_broken_agent_is_explained(code: str, words: str, tmp_path: Path) -> None:
    done = examine(*write_program(tmp_path / "agent.py", code))
    assert done.exit_code == 1
    assert words in done.output
    assert "\x1b" not in done.output
    assert "Traceback" not in done.output


def test_a_missing_program_is_reported() -> None:
    done = examine("no-such-agent")
    assert done.exit_code == 1
    assert "Could not start 'no-such-agent': No such file or directory" in done.output


def test_the_name_of_an_agent_leads_to_its_test(server: Server) -> None:
    server.on("GET", "/agents", Reply(200, {"items": [{"name": "no-such-program"}]}))
    assert "sandyard agent test no-such-program" in examine("no-such-program").stdout
    assert "agent test" not in examine("no-such-program", "--acp").stdout
    missing = examine()
    assert (missing.exit_code, "sandyard agent test NAME" in missing.stderr) == (2, True)


def test_the_example_of_the_guide_works_as_a_custom_agent(
    installation: Installation, example: Path, tmp_path: Path
) -> None:
    script = tmp_path / "install.sh"
    script.write_text(f"cat >~/note_agent.py <<'END'\n{example.read_text()}\nEND\n")
    command = ("note", "python3", "/home/user/note_agent.py")
    installation.ok("agent", "add", "--install", f"@{script}", "--check", "test -e ~/note_agent.py", *command)
    assert "It works. Reply: I have written it down" in installation.ok("agent", "test", "note")
    installation.ok("agent", "remove", "note")
