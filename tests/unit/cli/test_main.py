from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from sandyard import __version__
from sandyard.cli.main import COMMANDS, HELP, cli


def test_help_and_version() -> None:
    said = CliRunner().invoke(cli, ["--help"]).output
    for name in COMMANDS:
        assert name in said
    assert set(COMMANDS) == set(HELP)
    assert __version__ in CliRunner().invoke(cli, ["--version"]).output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli, ["fly"]).exit_code == 2


def test_help_needs_nothing_of_the_engine() -> None:
    """So that it answers at once."""
    code = "import sys; from sandyard.cli.main import cli\ntry: cli(['--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit('fastapi' in sys.modules or 'uvicorn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
