"""`sandyard git status`, `log` and `diff`: show a checkout like git does: coloured and paged on a terminal, plain in a pipe."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.connection import connect
from sandyard.cli.git.checkout import get_checkout_path, target_argument
from sandyard.cli.git.failures import print_advice_on_error
from sandyard.cli.git.operations import shorten_commit
from sandyard.cli.options import limit_option
from sandyard.cli.output import (
    echo,
    escape,
    escape_line,
    format_age,
    has_hidden_characters,
    pluralize,
    print_json,
    text_option,
    wants_colour,
)

if TYPE_CHECKING:
    from sandyard.cli.client import Client


CHANGE_LABELS = {
    "added": "new file",
    "modified": "modified",
    "deleted": "deleted",
    "renamed": "renamed",
    "copied": "copied",
    "type_changed": "type changed",
    "conflicted": "conflict",
}
MAX_PAGE_SIZE = 200
LABEL_WIDTH = max(len(word) for word in CHANGE_LABELS.values()) + 1
BAR_WIDTH = 40
AGAINST_PATTERN = re.compile(r"base|head|[0-9a-f]{4,64}")
HUNK_STYLES: dict[str, dict[str, Any]] = {"@": {"fg": "cyan"}, "+": {"fg": "green"}, "-": {"fg": "red"}}


@click.command()
@target_argument
@text_option
def status(target: str, output: str) -> None:
    """Show the current branch and its changes. Does not resume the sandbox."""
    with connect() as client, print_advice_on_error(target):
        path = get_checkout_path(client, target)
        result = client.get(f"{path}/status")
        if output == "json":
            print_json(result)
            return
        checkout = client.get(path)
    for line in format_status(result, checkout):
        echo(line)


def format_status(result: Any, checkout: Any) -> Iterator[str]:
    """Yield a status like `git status`, but shorter."""
    branch = escape(result.get("branch") or "") or f"no branch, at {shorten_commit(result.get('head'))}"
    yield f"On {f'branch {branch}' if result.get('branch') else branch}, from {escape(checkout['baseBranch'])}"
    yield _describe_pushed(result, checkout)
    if not result.get("live", True):
        when = f", {format_age(result['asOf'])}" if result.get("asOf") else ""
        yield f"The sandbox is paused. Showing its last saved state{when}."
    if result.get("underWay"):
        yield f"A {escape(result['underWay'])} is in progress."
    entries = result["entries"]
    conflicts = [entry for entry in entries if "conflicted" in (entry.get("index"), entry.get("worktree"))]
    rest = [entry for entry in entries if entry not in conflicts]
    staged = [_format_change(entry, entry["index"]) for entry in rest if entry.get("index")]
    unstaged = [
        _format_change(entry, entry["worktree"]) for entry in rest if entry.get("worktree") not in {None, "untracked"}
    ]
    untracked = [escape_line(entry["path"]) for entry in rest if entry.get("worktree") == "untracked"]
    yield from _format_section("Conflicts:", [_format_change(entry, "conflicted") for entry in conflicts], "red")
    yield from _format_section("Staged:", staged, "green")
    yield from _format_section("Not staged:", unstaged, "red")
    yield from _format_section("Untracked:", untracked, "red")
    if result.get("truncated"):
        yield "… the list is too long to show all files."
    if not entries:
        yield "No changes since the last commit."


def _describe_pushed(result: Any, checkout: Any) -> str:
    pushed, head = checkout.get("pushed"), result.get("head") or checkout.get("head")
    if pushed is None:
        return f"At {shorten_commit(head)}, not pushed yet."
    if pushed == head:
        return f"At {shorten_commit(head)}, pushed."
    return f"At {shorten_commit(head)}; the remote has {shorten_commit(pushed)}."


def _format_change(entry: Any, change: str) -> str:
    path = escape_line(entry["path"])
    name = f"{escape_line(entry['oldPath'])} -> {path}" if entry.get("oldPath") else path
    return f"{CHANGE_LABELS.get(change, change) + ':':<{LABEL_WIDTH}} {name}"


def _format_section(title: str, lines: list[str], colour: str) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {click.style(line, fg=colour) if wants_colour() else line}" for line in lines)


@click.command()
@target_argument
@click.option("--full", is_flag=True, help="Show authors, times and full messages.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip this many of the newest commits.")
@limit_option(30)
@text_option
def log(target: str, full: bool, skip: int, limit: int, output: str) -> None:
    """Show the commits of a branch. Newest first, followed by commits of its base branch. Does not resume the sandbox."""
    with connect() as client, print_advice_on_error(target):
        result = _fetch_history(client, f"{get_checkout_path(client, target)}/history", limit, skip)
    if output == "json":
        print_json(result)
        return
    own, base = result["items"], result["base"]
    if not own and not skip:
        echo("No commits on this branch yet." + (" It started from:" if base else ""), err=True)
    elif base and own:
        _print_commits(own, full=full)
        echo("Earlier commits of the base branch:", err=True)
        own = []
    _print_commits([*own, *base], full=full)
    if len(result["items"]) == limit:
        echo(f"Showing {pluralize(limit, 'commit')}. Use --limit to see more.", err=True)


def _fetch_history(client: Client, path: str, limit: int, skip: int) -> Any:
    """Return up to `limit` commits, in as few requests as possible."""
    items: list[Any] = []
    base: list[Any] = []
    while len(items) < limit:
        wanted = min(MAX_PAGE_SIZE, limit - len(items))
        page = client.get(path, limit=wanted, skip=skip + len(items), base=True)
        items += page["items"]
        base = page.get("base") or []
        if len(page["items"]) < wanted:
            break
    return {"items": items, "base": base}


def _print_commits(commits: list[Any], *, full: bool) -> None:
    if full and commits:
        echo("\n\n".join("\n".join(_format_commit(commit)) for commit in commits))
    for commit in () if full else commits:
        echo(f"{_style_hash(shorten_commit(commit['id']))} {escape(commit['subject'])}")


def _format_commit(commit: Any) -> Iterator[str]:
    yield _style_hash(f"commit {commit['id']}")
    author, committer = _format_person(commit["author"]), _format_person(commit["committer"])
    yield f"Author:    {author}"
    if committer != author:
        yield f"Committer: {committer}"
    yield f"Date:      {commit['authoredAt']} ({format_age(commit['authoredAt'])})"
    yield ""
    message = f"{commit['subject']}\n\n{commit.get('body') or ''}".rstrip()
    yield textwrap.indent("\n".join(escape_line(line) for line in message.split("\n")), "    ")


def _format_person(identity: Any) -> str:
    return escape(f"{identity['name']} <{identity['email']}>" if isinstance(identity, dict) else str(identity))


def _style_hash(text: str) -> str:
    return click.style(text, fg="yellow") if wants_colour() else text


def _parse_against(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if AGAINST_PATTERN.fullmatch(value) is None:
        raise click.BadParameter(f"{value!r} is not base, head or a commit id.")
    return value


@click.command()
@target_argument
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option(
    "--against",
    default="base",
    show_default=True,
    metavar="base|head|COMMIT",
    callback=_parse_against,
    help="base: all changes since the branch was created. head: only uncommitted changes.",
)
@click.option("--stat", "shape", flag_value="stat", type=str, help="Show only the number of changed lines per file.")
@click.option("--name-only", "shape", flag_value="names", type=str, help="Show only the names of changed files.")
@click.option(
    "--raw", is_flag=True, help="Print the patch unchanged, for `git apply`. Otherwise control characters are escaped."
)
@text_option
def diff(*, target: str, paths: tuple[str, ...], against: str, shape: str | None, raw: bool, output: str) -> None:
    """Show changes, optionally only in PATHs. Does not resume the sandbox."""
    with connect() as client, print_advice_on_error(target):
        result = client.get(
            f"{get_checkout_path(client, target)}/diff",
            against=against,
            path=paths or None,
            patches=shape is None,
        )
    if output == "json":
        print_json(result)
    elif shape == "names":
        for file in result["files"]:
            echo(escape(file["path"]))
    elif shape == "stat":
        for line in format_stat(result):
            echo(line)
    elif raw:
        _write_patch(result)
    else:
        print_diff(result)
    if result.get("truncated"):
        echo("Not all files are shown. To see others, give their PATHs.", err=True)


def print_diff(result: Any) -> None:
    """Print a diff. On a terminal, use a pager if it is longer than the screen."""
    colour = wants_colour()
    text = "".join(f"{line}\n" for file in result["files"] for line in format_file(file, colour=colour))
    if not sys.stdout.isatty():
        echo(text, nl=False)
        return
    os.environ.setdefault("LESS", "FRX")  # like git: quit if everything fits on the screen
    click.echo_via_pager(text, color=colour)


def format_file(file: Any, *, colour: bool = False) -> Iterator[str]:
    """Yield one file's part of a patch. Control characters are escaped, apart from our own colours."""
    for line, style in _style_lines(file):
        shown = escape_line(line)
        yield click.style(shown, **style) if colour and style else shown


def _style_lines(file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    header_style: dict[str, Any] = {"bold": True}
    in_hunk = False
    if has_hidden_characters("\n".join((_get_patch(file), file["path"], file.get("oldPath") or ""))):
        yield f"{file['path']}: Contains invisible or direction-changing characters.", {"fg": "yellow"}
    for line in _get_patch(file).removesuffix("\n").split("\n"):
        in_hunk = line.startswith("@@") or (in_hunk and not line.startswith("diff --git "))
        yield line, (HUNK_STYLES.get(line[:1], {}) if in_hunk else header_style)
    if remark := _explain_missing(file):
        yield remark, {"fg": "yellow"}


def _get_patch(file: Any) -> str:
    """Return the server's patch, or its headers if there is none."""
    return file.get("patch") or "".join(f"{line}\n" for line in _format_header(file))


def _format_header(file: Any) -> Iterator[str]:
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


def _explain_missing(file: Any) -> str | None:
    if file.get("binary"):
        return f"{file['path']} is a binary file and not shown."
    if file.get("truncated"):
        line_counts = f" (+{file['added']} -{file['removed']} lines)" if file.get("added") is not None else ""
        return f"{file['path']} has too many changes to show{line_counts}."
    return None


def format_stat(result: Any) -> Iterator[str]:
    """Yield ` src/login.py | 12 ++++++++----` for each file, and a summary line."""
    names = [_format_name(file) for file in result["files"]]
    width = max((len(name) for name in names), default=0)
    largest = max(((file.get("added") or 0) + (file.get("removed") or 0) for file in result["files"]), default=0)
    colour = wants_colour()
    for name, file in zip(names, result["files"], strict=True):
        if file.get("binary"):
            yield f" {name:<{width}} | binary"
            continue
        added, removed = file.get("added") or 0, file.get("removed") or 0
        scale = min(1.0, BAR_WIDTH / largest) if largest else 0.0
        bars = [
            sign * max(round(number * scale), 1 if number else 0) for sign, number in (("+", added), ("-", removed))
        ]
        if colour:
            bars = [click.style(bars[0], fg="green"), click.style(bars[1], fg="red")]
        yield f" {name:<{width}} | {added + removed:>{len(str(largest))}} {''.join(bars)}".rstrip()
    if names:
        yield f" {pluralize(len(names), 'file')} changed, +{result.get('added', 0)} -{result.get('removed', 0)} lines"


def _format_name(file: Any) -> str:
    path = escape(file["path"])
    return f"{escape(file['oldPath'])} => {path}" if file.get("oldPath") else path


def _write_patch(result: Any) -> None:
    for file in result["files"]:
        if remark := _explain_missing(file):
            echo(f"Skipped: {escape(remark)}", err=True)
        else:
            sys.stdout.buffer.write(_get_patch(file).encode())
    sys.stdout.buffer.flush()
