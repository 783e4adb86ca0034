"""The reference of the command line: every command of `sandyard` with its arguments and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from sandyard.cli.main import cli
from tests.documents.tables import make_table

INTRODUCTION = """# The command line

`sandyard COMMAND --help` prints the same. Options that are marked as repeatable can be given several times. `sandyard completion SHELL`
prints a script that completes commands, options and ids.
"""


def list_commands(
    group: click.Group = cli, parent: click.Context | None = None
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield every command that is not hidden, groups before their commands."""
    context = click.Context(group, parent=parent, info_name="sandyard" if parent is None else group.name)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            command.name = name
            yield command, click.Context(command, parent=context, info_name=name)
            yield from list_commands(command, context)
        else:
            yield command, click.Context(command, parent=context, info_name=name)


def _describe_option(option: click.Option, context: click.Context) -> tuple[str, str]:
    written, text = option.get_help_record(context) or ("", "")
    variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
    return f"`{written}`", " ".join((_mark_up(text), *(f"[variable: `{name}`]" for name in variables)))


def _mark_up(text: str) -> str:
    """Return a help text as Markdown: what looks like a tag or an emphasis is text."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"(\*|<(?=[a-zA-Z/!?]))", r"\\\1", part) for part in parts)


def _render_help(command: click.Command) -> str:
    """Return the help text. Paragraphs that click does not wrap are examples."""
    paragraphs = []
    for paragraph in inspect.cleandoc(command.help or "").partition("\f")[0].split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0] == "\b":
            paragraphs.append("```\n" + "\n".join(lines[1:]) + "\n```")
        else:
            paragraphs.append(_mark_up(" ".join(lines)))
    return "\n\n".join(paragraphs)


def _render_command(command: click.Command, context: click.Context) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = f"\n`{usage}`\n\n{_render_help(command)}\n"
    options = [
        _describe_option(param, context)
        for param in command.get_params(context)
        if isinstance(param, click.Option) and not param.hidden and "--help" not in param.opts
    ]
    return text + ("\n" + make_table(("Option", "Description"), options) if options else "")


def render() -> str:
    """Return docs/reference/cli.md."""
    text = INTRODUCTION
    for command, context in list_commands():
        depth = len(context.command_path.split())
        heading = "#" * min(depth, 3)
        text += f"\n{heading} {context.command_path}\n"
        text += f"{_render_help(command)}\n" if isinstance(command, click.Group) else _render_command(command, context)
    return text
