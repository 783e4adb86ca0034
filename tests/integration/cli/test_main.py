from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from sandyard import __version__
from sandyard.cli.main import COMMANDS, HELP, cli


def test_help_lists_the_commands_and_version_is_printed() -> None:
    printed = CliRunner().invoke(cli, ["--help"]).output
    for name in HELP:
        assert f"\n  {name} " in printed
    assert set(COMMANDS) - set(HELP) == {"platform"}
    assert __version__ in CliRunner().invoke(cli, ["--version"]).output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli, ["fly"]).exit_code == 2


SLOW_MODULES = {"fastapi", "uvicorn", "httpx", "rich", "websockets", "pydantic", "sqlalchemy", "asyncio"}


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["sandbox", "--help"],
        ["session", "create", "--help"],
        ["events", "--help"],
        ["project", "add", "--help"],
        ["git", "push", "--help"],
        ["pr", "open", "--help"],
        ["task", "add", "--help"],
        ["run", "--help"],
    ],
)
def test_help_imports_no_slow_modules(words: list[str]) -> None:
    """So that help is printed at once."""
    code = f"import sys; from sandyard.cli.main import cli\ntry: cli({words})\nexcept SystemExit: pass\n"
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert not loaded & (SLOW_MODULES - ({"asyncio"} if words[0] != "--help" else set()))
    assert not [name for name in loaded if name.startswith(("sandyard.engine", "sandyard.platform"))]
