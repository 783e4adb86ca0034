"""`sandyard completion`: print the shell integration and complete ids. Completes nothing while offline."""

from __future__ import annotations

import re
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from sandyard.cli.output import echo

TIMEOUT_SECONDS = 1.5
SAFE_VALUE = re.compile(r"(?!-)[\w@%+=:,./ -]*")
"""Values that a shell takes literally. bash inserts completions unquoted, and others have chosen the names."""
INSTALL_HINTS = {
    "bash": '# in ~/.bashrc:  eval "$(sandyard completion bash)"',
    "zsh": '# in ~/.zshrc:  eval "$(sandyard completion zsh)"',
    "fish": "# sandyard completion fish > ~/.config/fish/completions/sandyard.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL_HINTS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and ids.

    In ~/.bashrc: eval "$(sandyard completion bash)". For fish, write it to ~/.config/fish/completions/sandyard.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "sandyard", "_SANDYARD_COMPLETE").source()
    echo(f"{INSTALL_HINTS[shell]}\n{script}")


def complete_sandboxes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete sandbox ids, or session ids once `ses` is typed."""
    if incomplete.startswith("ses"):
        return complete_sessions(context, parameter, incomplete)
    return _complete_from_api(
        "/sandboxes", incomplete, lambda item: f"{item.get('status')} {item.get('template') or ''}".strip()
    )


def complete_sessions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete_from_api("/sessions", incomplete, lambda item: item.get("title") or "")


def complete_targets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete session ids, or sandbox ids once `sbx` is typed."""
    return (complete_sandboxes if incomplete.startswith("sbx") else complete_sessions)(context, parameter, incomplete)


def complete_projects(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete project names, or ids once `prj` is typed."""
    if incomplete.startswith("prj"):
        return _complete_from_api("/projects", incomplete, lambda item: item.get("name") or "")
    return _complete_from_api("/projects", incomplete, lambda item: item.get("repository") or "", field="name")


def complete_tasks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete_from_api(
        "/tasks", incomplete, lambda item: f"{item.get('status')} {item.get('title') or ''}".strip()
    )


def complete_schedules(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete schedule names, or ids once `sch` is typed."""
    field = "id" if incomplete.startswith("sch") else "name"
    return _complete_from_api("/schedules", incomplete, lambda item: item.get("cron") or "", field=field)


def complete_agents(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete_from_api("/agents", incomplete, lambda item: item.get("title") or "", field="name")


def complete_providers(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete model provider names, or ids once `prv` is typed."""
    field = "id" if incomplete.startswith("prv") else "name"
    return _complete_from_api("/model-providers", incomplete, lambda item: item.get("kind") or "", field=field)


def complete_presets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete_from_api("/model-presets", incomplete, lambda item: item.get("title") or "", field="name")


def complete_pull_requests(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete pull request numbers, or session ids once `ses` is typed."""
    if incomplete.startswith("ses"):
        return complete_sessions(context, parameter, incomplete)
    return _complete_from_api("/github/pull-requests", incomplete, lambda item: item.get("title") or "", field="number")


def complete_tokens(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete_from_api("/tokens", incomplete, lambda item: item.get("name") or "")


def complete_copy_paths(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete local paths and `sbx_…:`."""
    if ":" in incomplete:
        return []
    return [
        *(
            CompletionItem(f"{item.value}:", help=item.help)
            for item in complete_sandboxes(context, parameter, incomplete)
        ),
        CompletionItem(incomplete, type="file"),
    ]


def _complete_from_api(path: str, incomplete: str, describe: Any, *, field: str = "id") -> list[CompletionItem]:
    from sandyard.cli.connection import connect  # noqa: PLC0415 - slow to load
    from sandyard.cli.output import escape  # noqa: PLC0415
    from sandyard.kit.errors import SandyardError  # noqa: PLC0415

    try:
        with connect(timeout=TIMEOUT_SECONDS) as client:
            items = client.get(path, limit=200)["items"]
        return [
            CompletionItem(str(item[field]), help=escape(describe(item)))
            for item in items
            if item[field] is not None
            and str(item[field]).startswith(incomplete)
            and SAFE_VALUE.fullmatch(str(item[field]))
        ]
    except (SandyardError, OSError, KeyError, TypeError, AttributeError):
        return []
