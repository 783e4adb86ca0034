"""The command `sandyard`. What a subcommand needs is imported when it is called: `sandyard --help` answers at once."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from sandyard import __version__
from sandyard.kit.errors import SandyardError

COMMANDS = {
    "engine": ("sandyard.cli.engine", "engine"),
    "keys": ("sandyard.cli.keys", "keys"),
    "doctor": ("sandyard.cli.doctor", "doctor"),
    "template": ("sandyard.engine.templates.commands", "template"),
}
HELP = {
    "engine": "Serve sandboxes to E2B clients.",
    "keys": "Make, list and revoke API keys.",
    "doctor": "Say what this machine can do, and what is missing for more.",
    "template": "Build and list the root file systems that sandboxes start from.",
}


class Commands(click.Group):
    """A group whose commands are loaded by name, and whose errors are one sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, HELP[name]) for name in COMMANDS])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SandyardError as error:
            click.echo(f"sandyard: {error.message}", err=True)
            sys.exit(1)
        except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            click.echo(f"sandyard: {error.strerror}: {error.filename}", err=True)
            sys.exit(1)


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="sandyard")
def cli() -> None:
    """Every coding agent gets its own computer."""
