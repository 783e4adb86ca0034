"""`sandyard git status` and `log`: show the state of a checkout without waking its sandbox."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.connection import connect
from sandyard.cli.git.failures import advised
from sandyard.cli.git.told import counted, short
from sandyard.cli.git.workplace import path_of, workplace_argument
from sandyard.cli.options import limit_option
from sandyard.cli.output import ago, echo, in_colour, print_json, printable, text_option, visible

if TYPE_CHECKING:
    from sandyard.cli.client import Client

WORDS = {
    "added": "new file",
    "modified": "modified",
    "deleted": "deleted",
    "renamed": "renamed",
    "copied": "copied",
    "type_changed": "type changed",
    "conflicted": "conflict",
}
PAGE = 200
WIDTH = max(len(word) for word in WORDS.values()) + 1


@click.command()
@workplace_argument
@text_option
def status(workplace: str, output: str) -> None:
    """Show the current branch and its changes. Does not wake the sandbox."""
    with connect() as client, advised(workplace):
        path = path_of(client, workplace)
        found = client.get(f"{path}/status")
        if output == "json":
            print_json(found)
            return
        checkout = client.get(path)
    for line in described(found, checkout):
        echo(line)


def described(found: Any, checkout: Any) -> Iterator[str]:
    """Yield a status like `git status`, but shorter."""
    branch = printable(found.get("branch") or "") or f"no branch, at {short(found.get('head'))}"
    yield f"On {f'branch {branch}' if found.get('branch') else branch}, from {printable(checkout['baseBranch'])}"
    yield _describe_pushed(found, checkout)
    if not found.get("live", True):
        when = f", {ago(found['asOf'])}" if found.get("asOf") else ""
        yield f"The sandbox is paused. Showing its last saved state{when}."
    if found.get("underWay"):
        yield f"A {printable(found['underWay'])} is in progress."
    entries = found["entries"]
    conflicts = [entry for entry in entries if "conflicted" in (entry.get("index"), entry.get("worktree"))]
    rest = [entry for entry in entries if entry not in conflicts]
    staged = [_format_change(entry, entry["index"]) for entry in rest if entry.get("index")]
    unstaged = [
        _format_change(entry, entry["worktree"]) for entry in rest if entry.get("worktree") not in {None, "untracked"}
    ]
    untracked = [visible(entry["path"]) for entry in rest if entry.get("worktree") == "untracked"]
    yield from _format_section("Conflicts:", [_format_change(entry, "conflicted") for entry in conflicts], "red")
    yield from _format_section("Staged:", staged, "green")
    yield from _format_section("Not staged:", unstaged, "red")
    yield from _format_section("Untracked:", untracked, "red")
    if found.get("truncated"):
        yield "… the list is too long to show all files."
    if not entries:
        yield "No changes since the last commit."


def _describe_pushed(found: Any, checkout: Any) -> str:
    pushed, head = checkout.get("pushed"), found.get("head") or checkout.get("head")
    if pushed is None:
        return f"At {short(head)}, not pushed yet."
    if pushed == head:
        return f"At {short(head)}, pushed."
    return f"At {short(head)}; the remote has {short(pushed)}."


def _format_change(entry: Any, change: str) -> str:
    path = visible(entry["path"])
    name = f"{visible(entry['oldPath'])} -> {path}" if entry.get("oldPath") else path
    return f"{WORDS.get(change, change) + ':':<{WIDTH}} {name}"


def _format_section(title: str, lines: list[str], colour: str) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {click.style(line, fg=colour) if in_colour() else line}" for line in lines)


@click.command()
@workplace_argument
@click.option("--full", is_flag=True, help="Show authors, times and full messages.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip this many of the newest commits.")
@limit_option(30)
@text_option
def log(workplace: str, full: bool, skip: int, limit: int, output: str) -> None:
    """Show the commits of a branch. Newest first, followed by the ones it started from. Does not wake the sandbox."""
    with connect() as client, advised(workplace):
        found = _history(client, f"{path_of(client, workplace)}/history", limit, skip)
    if output == "json":
        print_json(found)
        return
    own, base = found["items"], found["base"]
    if not own and not skip:
        echo("No commits on this branch yet." + (" It started from:" if base else ""), err=True)
    elif base and own:
        _print_commits(own, full=full)
        echo("Earlier commits of the base branch:", err=True)
        own = []
    _print_commits([*own, *base], full=full)
    if len(found["items"]) == limit:
        echo(f"Showing {counted(limit, 'commit')}. Use --limit to see more.", err=True)


def _history(client: Client, path: str, limit: int, skip: int) -> Any:
    """Return up to `limit` commits, in as few requests as possible."""
    items: list[Any] = []
    base: list[Any] = []
    while len(items) < limit:
        wanted = min(PAGE, limit - len(items))
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
        echo(f"{_style_hash(short(commit['id']))} {printable(commit['subject'])}")


def _format_commit(commit: Any) -> Iterator[str]:
    yield _style_hash(f"commit {commit['id']}")
    author, committer = _format_person(commit["author"]), _format_person(commit["committer"])
    yield f"Author:    {author}"
    if committer != author:
        yield f"Committer: {committer}"
    yield f"Date:      {commit['authoredAt']} ({ago(commit['authoredAt'])})"
    yield ""
    message = f"{commit['subject']}\n\n{commit.get('body') or ''}".rstrip()
    yield textwrap.indent("\n".join(visible(line) for line in message.split("\n")), "    ")


def _format_person(identity: Any) -> str:
    return printable(f"{identity['name']} <{identity['email']}>" if isinstance(identity, dict) else str(identity))


def _style_hash(text: str) -> str:
    return click.style(text, fg="yellow") if in_colour() else text
