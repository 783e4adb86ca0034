"""The `sandyard` command. Subcommands are imported when they are called, so that `sandyard --help` is fast."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import click

from sandyard import __version__
from sandyard.cli.advice import get_advice
from sandyard.cli.output import echo
from sandyard.kit.errors import SandyardError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "up": ("sandyard.cli.up.command", "up"),
    "doctor": ("sandyard.cli.doctor", "doctor"),
    "setup": ("sandyard.cli.setup.command", "setup"),
    "backup": ("sandyard.cli.backup.command", "backup"),
    "restore": ("sandyard.cli.backup.command", "restore_command"),
    "gc": ("sandyard.cli.gc", "gc"),
    "support-bundle": ("sandyard.cli.support.command", "support_bundle"),
    "install-service": ("sandyard.cli.service", "install_service"),
    "uninstall-service": ("sandyard.cli.service", "uninstall_service"),
    "login": ("sandyard.cli.login", "login"),
    "logout": ("sandyard.cli.login", "logout"),
    "password": ("sandyard.cli.login", "password"),
    "run": ("sandyard.cli.run", "run"),
    "task": ("sandyard.cli.tasks.group", "task"),
    "schedule": ("sandyard.cli.tasks.schedules", "schedule"),
    "agent": ("sandyard.cli.agents", "agent"),
    "model": ("sandyard.cli.models", "model"),
    "usage": ("sandyard.cli.models", "usage"),
    "session": ("sandyard.cli.sessions", "session"),
    "sandbox": ("sandyard.cli.sandboxes.group", "sandbox"),
    "ssh": ("sandyard.cli.remote.command", "ssh"),
    "ssh-config": ("sandyard.cli.remote.command", "ssh_config"),
    "project": ("sandyard.cli.projects.group", "project"),
    "git": ("sandyard.cli.git.group", "git"),
    "pr": ("sandyard.cli.pull_requests", "pull_request"),
    "user": ("sandyard.cli.users", "user"),
    "events": ("sandyard.cli.events", "events"),
    "mcp": ("sandyard.cli.mcp.command", "mcp"),
    "api-key": ("sandyard.cli.api_keys", "api_key"),
    "engine": ("sandyard.cli.engine", "engine"),
    "host": ("sandyard.cli.hosts", "host"),
    "keys": ("sandyard.cli.keys", "keys"),
    "encryption-key": ("sandyard.cli.encryption_keys", "encryption_key"),
    "ca": ("sandyard.cli.ca", "ca"),
    "template": ("sandyard.engine.templates.commands", "template"),
    "volume": ("sandyard.cli.volumes", "volume"),
    "snapshot": ("sandyard.cli.snapshots", "snapshot"),
    "completion": ("sandyard.cli.completion", "completion"),
    "platform": ("sandyard.cli.platform", "platform"),
}
HELP = {
    "up": "Start the engine and the platform and keep them running.",
    "doctor": "Check what this machine supports and what is missing.",
    "setup": "Install what this machine lacks: packages, gVisor, CRIU.",
    "backup": "Write everything that cannot be created again to an encrypted file.",
    "restore": "Restore a backup into an empty data directory.",
    "gc": "Show disk use, and remove data that is no longer needed.",
    "support-bundle": "Write what helps to find a problem to a file, without secrets.",
    "install-service": "Run `sandyard up` as a systemd service.",
    "uninstall-service": "Remove the systemd service.",
    "login": "Log in to a server and remember it.",
    "logout": "Log out, and revoke the token if `login` created it.",
    "password": "Change your password.",
    "run": "Let an agent work on a repository, without any setup.",
    "task": "Manage tasks: work for agents, from a card to a pull request.",
    "schedule": "Manage schedules: tasks that are created repeatedly.",
    "agent": "Manage agents: list, add and test them.",
    "model": "Manage model providers: their URLs, API keys and prices.",
    "usage": "Show what was spent on models.",
    "session": "Manage sessions: one agent working in its own sandbox.",
    "sandbox": "Manage sandboxes: run commands, copy files, pause, fork.",
    "ssh": "Connect to a sandbox with SSH, or run a command there.",
    "ssh-config": "Configure ssh, scp, rsync and editors to reach sandboxes.",
    "project": "Manage projects: a repository, its credentials and its members.",
    "git": "Use git in a session's checkout: diff, commit, push, restore.",
    "pr": "Manage pull requests: open, review, merge.",
    "user": "List users and set their limits.",
    "events": "Show past events and follow new ones.",
    "mcp": "Connect other agents to this server (Model Context Protocol).",
    "api-key": "Create, list and revoke tokens for the platform's API.",
    "engine": "Serve sandboxes to E2B clients.",
    "host": "Add machines on which the engine runs sandboxes, and manage them.",
    "keys": "Create, list and revoke API keys of the engine.",
    "encryption-key": "List and rotate the keys that encrypt stored secrets.",
    "ca": "Show the engine's certificate authority and how to trust it.",
    "template": "Build and list the root file systems that sandboxes start from.",
    "volume": "List and delete volumes: files that sandboxes share.",
    "snapshot": "List snapshots, and fetch them from the layer store.",
    "completion": "Print the shell completion script.",
}
"""Help texts. Commands that are not listed here are internal."""


class LazyGroup(click.Group):
    """A group that loads its commands by name and reports errors as one sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(HELP)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(HELP.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names like click, but without importing every command."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only needed for completion

        names = [CompletionItem(name, help=text) for name, text in HELP.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SandyardError as error:
            echo(f"sandyard: {error.message}", err=True)
            preset = getattr(error, "details", {}).get("preset")
            if (advice := get_advice(getattr(error, "problem_code", None), preset=preset)) is not None:
                echo(advice, err=True)
            sys.exit(getattr(error, "exit_code", 1))
        except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            echo(f"sandyard: {error.strerror}: {error.filename}", err=True)
            sys.exit(1)


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="sandyard")
def cli() -> None:
    """Every coding agent gets its own computer."""
