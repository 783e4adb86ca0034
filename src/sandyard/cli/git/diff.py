"""`sandyard git diff`: show the changes of a session like git does: coloured and paged on a terminal, plain in a pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import click

from sandyard.cli.connection import connect
from sandyard.cli.git.failures import advised
from sandyard.cli.git.told import counted
from sandyard.cli.git.workplace import path_of, workplace_argument
from sandyard.cli.output import echo, in_colour, print_json, printable, text_option, visible

BAR = 40
AGAINST = re.compile(r"base|head|[0-9a-f]{4,64}")


def _against(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if AGAINST.fullmatch(value) is None:
        raise click.BadParameter(f"{value!r} is not base, head or a commit id.")
    return value


@click.command()
@workplace_argument
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option(
    "--against",
    default="base",
    show_default=True,
    metavar="base|head|COMMIT",
    callback=_against,
    help="base: all changes since the branch was created. head: only uncommitted changes.",
)
@click.option("--stat", "shape", flag_value="stat", type=str, help="Show only the number of changed lines per file.")
@click.option("--name-only", "shape", flag_value="names", type=str, help="Show only the names of changed files.")
@click.option(
    "--raw", is_flag=True, help="Print the patch unchanged, for `git apply`. Otherwise control characters are escaped."
)
@text_option
def diff(*, workplace: str, paths: tuple[str, ...], against: str, shape: str | None, raw: bool, output: str) -> None:
    """Show changes, optionally only in PATHs. Does not wake the sandbox."""
    with connect() as client, advised(workplace):
        found = client.get(
            f"{path_of(client, workplace)}/diff",
            against=against,
            path=paths or None,
            patches=shape is None,
        )
    if output == "json":
        print_json(found)
    elif shape == "names":
        for file in found["files"]:
            echo(printable(file["path"]))
    elif shape == "stat":
        for line in stat(found):
            echo(line)
    elif raw:
        _write(found)
    else:
        show(found)
    if found.get("truncated"):
        echo("Not all files are shown. To see others, give their PATHs.", err=True)


def show(found: Any) -> None:
    """Print a diff. On a terminal, use a pager if it is longer than the screen."""
    colour = in_colour()
    text = "".join(f"{line}\n" for file in found["files"] for line in lines(file, colour=colour))
    if not sys.stdout.isatty():
        echo(text, nl=False)
        return
    os.environ.setdefault("LESS", "FRX")  # like git: quit if everything fits on the screen
    click.echo_via_pager(text, color=colour)


def lines(file: Any, *, colour: bool = False) -> Iterator[str]:
    """Yield one file's part of a patch. Control characters are escaped, apart from our own colours."""
    for line, style in _styled(file):
        shown = visible(line)
        yield click.style(shown, **style) if colour and style else shown


def _styled(file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    strong: dict[str, Any] = {"bold": True}
    in_hunk = False
    for line in _patch(file).removesuffix("\n").split("\n"):
        in_hunk = line.startswith("@@") or (in_hunk and not line.startswith("diff --git "))
        yield line, (HUNK.get(line[:1], {}) if in_hunk else strong)
    if remark := _remark(file):
        yield remark, {"fg": "yellow"}


HUNK: dict[str, dict[str, Any]] = {"@": {"fg": "cyan"}, "+": {"fg": "green"}, "-": {"fg": "red"}}


def _patch(file: Any) -> str:
    """Return the server's patch, or its headers if there is none."""
    return file.get("patch") or "".join(f"{line}\n" for line in _header(file))


def _header(file: Any) -> Iterator[str]:
    new, old = file["path"], file.get("oldPath") or file["path"]
    yield f"diff --git a/{old} b/{new}"
    if file["change"] == "added":
        yield f"new file mode {file.get('newMode') or '100644'}"
    elif file["change"] == "deleted":
        yield f"deleted file mode {file.get('oldMode') or '100644'}"
    elif file.get("oldMode") and file.get("newMode") and file["oldMode"] != file["newMode"]:
        yield f"old mode {file['oldMode']}"
        yield f"new mode {file['newMode']}"
    if old != new:
        word = "copy" if file["change"] == "copied" else "rename"
        yield f"{word} from {old}"
        yield f"{word} to {new}"


def _remark(file: Any) -> str | None:
    if file.get("binary"):
        return f"{file['path']} is a binary file and not shown."
    if file.get("truncated"):
        grown = f" (+{file['added']} -{file['removed']} lines)" if file.get("added") is not None else ""
        return f"{file['path']} has too many changes to show{grown}."
    return None


def stat(found: Any) -> Iterator[str]:
    """Yield ` src/login.py | 12 ++++++++----` for each file, and a summary line."""
    names = [_name(file) for file in found["files"]]
    width = max((len(name) for name in names), default=0)
    most = max(((file.get("added") or 0) + (file.get("removed") or 0) for file in found["files"]), default=0)
    colour = in_colour()
    for name, file in zip(names, found["files"], strict=True):
        if file.get("binary"):
            yield f" {name:<{width}} | binary"
            continue
        added, removed = file.get("added") or 0, file.get("removed") or 0
        scale = min(1.0, BAR / most) if most else 0.0
        bars = [
            sign * max(round(number * scale), 1 if number else 0) for sign, number in (("+", added), ("-", removed))
        ]
        if colour:
            bars = [click.style(bars[0], fg="green"), click.style(bars[1], fg="red")]
        yield f" {name:<{width}} | {added + removed:>{len(str(most))}} {''.join(bars)}".rstrip()
    if names:
        yield f" {counted(len(names), 'file')} changed, +{found.get('added', 0)} -{found.get('removed', 0)} lines"


def _name(file: Any) -> str:
    path = printable(file["path"])
    return f"{printable(file['oldPath'])} => {path}" if file.get("oldPath") else path


def _write(found: Any) -> None:
    for file in found["files"]:
        if remark := _remark(file):
            echo(f"Skipped: {printable(remark)}", err=True)
        else:
            sys.stdout.buffer.write(_patch(file).encode())
    sys.stdout.buffer.flush()
