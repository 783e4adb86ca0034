"""`sandyard git status` and `log`: where a checkout is, without waking its sandbox."""

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
    "conflicted": "both changed",
}
PAGE = 200
WIDTH = max(len(word) for word in WORDS.values()) + 1


@click.command()
@workplace_argument
@text_option
def status(workplace: str, output: str) -> None:
    """Which branch is checked out, and what has changed. Looking does not wake the sandbox."""
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
    """As `git status` has it, in fewer words."""
    branch = printable(found.get("branch") or "") or f"no branch, at {short(found.get('head'))}"
    yield f"On {f'branch {branch}' if found.get('branch') else branch}, from {printable(checkout['baseBranch'])}"
    yield _pushed(found, checkout)
    if not found.get("live", True):
        when = f", {ago(found['asOf'])}" if found.get("asOf") else ""
        yield f"The sandbox does not run: this is how it was kept{when}."
    if found.get("underWay"):
        yield f"A {printable(found['underWay'])} is under way."
    entries = found["entries"]
    conflicts = [entry for entry in entries if "conflicted" in (entry.get("index"), entry.get("worktree"))]
    rest = [entry for entry in entries if entry not in conflicts]
    staged = [_changed(entry, entry["index"]) for entry in rest if entry.get("index")]
    unstaged = [
        _changed(entry, entry["worktree"]) for entry in rest if entry.get("worktree") not in {None, "untracked"}
    ]
    untracked = [visible(entry["path"]) for entry in rest if entry.get("worktree") == "untracked"]
    yield from _section("Conflicts:", [_changed(entry, "conflicted") for entry in conflicts], "red")
    yield from _section("To be committed:", staged, "green")
    yield from _section("Changed, not staged:", unstaged, "red")
    yield from _section("New, not staged:", untracked, "red")
    if found.get("truncated"):
        yield "and more: the list is too long to be shown."
    if not entries:
        yield "Nothing has changed since the last commit."


def _pushed(found: Any, checkout: Any) -> str:
    pushed, head = checkout.get("pushed"), found.get("head") or checkout.get("head")
    if pushed is None:
        return f"At {short(head)}; the branch was not pushed yet."
    if pushed == head:
        return f"At {short(head)}, which is pushed."
    return f"At {short(head)}; pushed is {short(pushed)}."


def _changed(entry: Any, change: str) -> str:
    path = visible(entry["path"])
    name = f"{visible(entry['oldPath'])} -> {path}" if entry.get("oldPath") else path
    return f"{WORDS.get(change, change) + ':':<{WIDTH}} {name}"


def _section(title: str, lines: list[str], colour: str) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {click.style(line, fg=colour) if in_colour() else line}" for line in lines)


@click.command()
@workplace_argument
@click.option("--full", is_flag=True, help="With authors, times and whole messages.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Leave out so many of the newest.")
@limit_option(30)
@text_option
def log(workplace: str, full: bool, skip: int, limit: int, output: str) -> None:
    """The branch's own commits, and those it began from. Newest first; looking does not wake the sandbox."""
    with connect() as client, advised(workplace):
        found = _history(client, f"{path_of(client, workplace)}/history", limit, skip)
    if output == "json":
        print_json(found)
        return
    own, base = found["items"], found["base"]
    if not own and not skip:
        echo("No commits of its own yet." + (" It began from:" if base else ""), err=True)
    elif base and own:
        _show(own, full=full)
        echo("Before that, on its base:", err=True)
        own = []
    _show([*own, *base], full=full)
    if len(found["items"]) == limit:
        echo(f"Only {counted(limit, 'commit')}: --limit shows more.", err=True)


def _history(client: Client, path: str, limit: int, skip: int) -> Any:
    """Up to `limit` commits, in as few requests as that takes."""
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


def _show(commits: list[Any], *, full: bool) -> None:
    if full and commits:
        echo("\n\n".join("\n".join(_commit(commit)) for commit in commits))
    for commit in () if full else commits:
        echo(f"{_hash(short(commit['id']))} {printable(commit['subject'])}")


def _commit(commit: Any) -> Iterator[str]:
    yield _hash(f"commit {commit['id']}")
    author, committer = _person(commit["author"]), _person(commit["committer"])
    yield f"Author:    {author}"
    if committer != author:
        yield f"Committer: {committer}"
    yield f"Date:      {commit['authoredAt']} ({ago(commit['authoredAt'])})"
    yield ""
    message = f"{commit['subject']}\n\n{commit.get('body') or ''}".rstrip()
    yield textwrap.indent("\n".join(visible(line) for line in message.split("\n")), "    ")


def _person(identity: Any) -> str:
    return printable(f"{identity['name']} <{identity['email']}>" if isinstance(identity, dict) else str(identity))


def _hash(text: str) -> str:
    return click.style(text, fg="yellow") if in_colour() else text
