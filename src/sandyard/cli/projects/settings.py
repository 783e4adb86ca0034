"""`sandyard project set`: change what a project is and how it is worked on. What is not named stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from sandyard.cli.completion import agent_names, project_ids
from sandyard.cli.connection import connect, project_of, segment
from sandyard.cli.output import output_option, show_one
from sandyard.cli.projects.repository import located
from sandyard.cli.projects.showing import FIELDS

F = TypeVar("F", bound=Callable[..., Any])
BUDGET = click.FloatRange(min=0)
IDENTITY = re.compile(r"^\s*([^<>]+?)\s*<([^<>\s]+)>\s*$")
PLACES = {
    "forge": ("forge", "kind"),
    "api_url": ("forge", "apiUrl"),
    "draft": ("forge", "draft"),
    "labels": ("forge", "labels"),
    "reviewers": ("forge", "reviewers"),
    "assignees": ("forge", "assignees"),
    "merge_method": ("forge", "mergeMethod"),
    "delete_branch": ("forge", "deleteBranch"),
    "author": ("git", "author"),
    "committer": ("git", "committer"),
    "co_author": ("git", "coAuthor"),
    "commit_messages": ("git", "commitMessages"),
    "verify": ("verify", "command"),
    "setup": ("setup", "command"),
    "agent": ("agent", "default"),
    "model": ("agent", "model"),
    "permissions": ("agent", "permissions", "mode"),
    "deny_patterns": ("agent", "permissions", "deny"),
    "network": ("network", "mode"),
    "network_presets": ("network", "presets"),
    "allow_hosts": ("network", "allow"),
    "parallel": ("tasks", "parallel"),
    "budget_usd": ("tasks", "budget", "usd"),
    "monthly_budget_usd": ("tasks", "monthlyBudget", "usd"),
    "issue_label": ("tasks", "issueLabel"),
    "idle_seconds": ("idleSeconds",),
    "template": ("template",),
}
"""Where in the project's settings an option belongs."""
PRESETS = ("forge", "debian", "pypi", "npm", "crates", "go", "maven", "rubygems")
BUDGETS = {"budget_usd", "monthly_budget_usd"}


def _identity(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, str] | str | None:
    if not value:
        return value
    if (match := IDENTITY.match(value)) is None:
        raise click.BadParameter("It looks like `Maria Muster <maria@example.org>`.")
    return {"name": match[1], "email": match[2]}


def _list(name: str, text: str) -> Callable[[F], F]:
    return click.option(f"--{name}", f"{name}s", multiple=True, help=f"{text} Repeatable.")


@click.command("set")
@click.argument("project", metavar="PROJECT", shell_complete=project_ids)
@click.option("--name", help="Another name.")
@click.option("--repository", help="Another address of its repository.")
@click.option("--base", help="The branch to start from and to merge into.")
@click.option("--forge", type=click.Choice(["auto", "github", "plain"]), help="What the repository lies on.")
@click.option("--api-url", help="Of a GitHub Enterprise Server.")
@click.option("--verify", metavar="COMMAND", help="What must succeed before work is pushed, as `make test`.")
@click.option(
    "--setup",
    metavar="COMMAND",
    help="What prepares a checkout, once for each base commit.  [default: .sandyard/setup.sh, else as devcontainer.json says]",
)
@click.option("--agent", shell_complete=agent_names, help="Who does tasks that name nobody.")
@click.option("--model", help="With which model, where a task names none.")
@click.option(
    "--permissions",
    type=click.Choice(["ask", "allow_reads", "allow_all"]),
    help="What agents may do in their sandbox without asking you.",
)
@click.option(
    "--deny",
    "deny_patterns",
    multiple=True,
    metavar="PATTERN",
    help="What agents are always refused: a regular expression, searched for in what they ask for. Repeatable.",
)
@click.option(
    "--network",
    type=click.Choice(["none", "listed", "all", ""]),
    help="What its sandboxes may connect to: nothing, the presets and hosts below, or everything.",
)
@click.option(
    "--network-preset",
    "network_presets",
    multiple=True,
    type=click.Choice([*PRESETS, ""]),
    help="With listed: the project's forge, or where packages come from. Repeatable.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="HOST",
    help="With listed: a domain name, *.example.org, an address or a CIDR. Repeatable.",
)
@click.option("--parallel", type=click.IntRange(1, 200), help="So many attempts may run at once.")
@click.option("--budget-usd", type=BUDGET, help="A task stops when models have cost this much; 0: no limit.")
@click.option("--monthly-budget-usd", type=BUDGET, help="The same for the whole project and month.")
@click.option("--issue-label", help="Issues that get this label become tasks.")
@click.option("--template", help="The root file system of its sandboxes.")
@click.option("--idle-seconds", type=click.IntRange(5), help="Sandboxes unused this long are paused.")
@click.option("--author", callback=_identity, help="Of commits: `Name <address>`.")
@click.option("--committer", callback=_identity, help="Of commits, if not the author.")
@click.option("--co-author", callback=_identity, help="Named in commits besides, if not the session's agent.")
@click.option("--commit-messages", type=click.Choice(["conventional", "any"]), help="What messages commits must have.")
@click.option("--draft/--ready", default=None, help="How pull requests are opened.")
@_list("label", "Of pull requests.")
@_list("reviewer", "Of pull requests.")
@_list("assignee", "Of pull requests.")
@click.option("--merge-method", type=click.Choice(["squash", "merge", "rebase"]), help="How pull requests are merged.")
@click.option("--delete-branch/--keep-branch", default=None, help="What becomes of a branch that was merged.")
@click.option("--archive/--unarchive", "archived", default=None, help="Put it away, or take it out again.")
@output_option
def change(project: str, output: str | None, **options: Any) -> None:
    """Change a project. An empty value takes away what was set: --template '' or --label ''."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if not given:
        raise click.UsageError("There is nothing to change: name what, as `sandyard project set --help` shows.")
    with connect() as client:
        path = f"/projects/{segment(project_of(client, project))}"
        body: dict[str, Any] = {
            field: given[name] or None for name, field in (("name", "name"), ("base", "baseBranch")) if name in given
        }
        if "repository" in given:
            body["repository"] = located(given["repository"]) or None
        if "archived" in given:
            body["archived"] = given["archived"]
        if settings := {name: value for name, value in given.items() if name in PLACES}:
            body["settings"] = changed(client.get(path)["settings"], settings)
        made = client.patch(path, body)
    show_one(made, FIELDS, output)


def changed(settings: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`settings` with what was given; the rest of it as it is."""
    settings = {**settings}
    for name, value in given.items():
        *parts, field = PLACES[name]
        target = settings
        for part in parts:
            target[part] = target = {**(target.get(part) or {})}
        if isinstance(value, tuple):
            target[field] = [item for item in value if item]
        else:
            target[field] = None if value == "" or (name in BUDGETS and not value) else value
    return settings
