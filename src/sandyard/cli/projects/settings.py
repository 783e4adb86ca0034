"""`sandyard project set`: change a project and its settings. Options that are not given stay unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sandyard.cli.completion import complete_agents, complete_projects
from sandyard.cli.connection import connect, get_project_id, quote_segment
from sandyard.cli.output import output_option, show_one

FIELDS = {
    "id": "id",
    "name": "name",
    "repository": "repository",
    "base": "baseBranch",
    "problem": "connectionError",
    "verify command": "settings.verify.command",
    "setup command": "settings.setup.command",
    "agent": "defaultAgent",
    "model": "settings.agent.model",
    "permissions": "settings.agent.permissions.mode",
    "denied": "settings.agent.permissions.deny",
    "network": "settings.network.mode",
    "presets": "settings.network.presets",
    "allowed hosts": "settings.network.allow",
    "parallel attempts": "settings.tasks.parallel",
    "task budget ($)": "settings.tasks.budget.usd",
    "monthly budget ($)": "settings.tasks.monthlyBudget.usd",
    "issue label": "settings.tasks.issueLabel",
    "forge": "settings.forge.kind",
    "API": "settings.forge.apiUrl",
    "merge method": "settings.forge.mergeMethod",
    "drafts": "settings.forge.draft",
    "labels": "settings.forge.labels",
    "reviewers": "settings.forge.reviewers",
    "assignees": "settings.forge.assignees",
    "messages": "settings.git.commitMessages",
    "CI files": "settings.git.ciFiles",
    "author": "settings.git.author.name",
    "template": "settings.template",
    "isolation": "settings.isolation",
    "containers": "settings.containers",
    "host labels": "settings.hostLabels",
    "idle seconds": "settings.idleSeconds",
    "created": "createdAt",
    "archived": "archivedAt",
}
F = TypeVar("F", bound=Callable[..., Any])
BUDGET = click.FloatRange(min=0)
IDENTITY = re.compile(r"^\s*([^<>]+?)\s*<([^<>\s]+)>\s*$")
SETTING_PATHS = {
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
    "ci_files": ("git", "ciFiles"),
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
    "isolation": ("isolation",),
    "containers": ("containers",),
    "host_labels": ("hostLabels",),
    "template": ("template",),
}
"""The path of each option in the project's settings."""
NETWORK_PRESETS = ("forge", "debian", "pypi", "npm", "crates", "go", "maven", "rubygems")
BUDGET_OPTIONS = {"budget_usd", "monthly_budget_usd"}


def _parse_identity(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> dict[str, str] | str | None:
    if not value:
        return value
    if (match := IDENTITY.match(value)) is None:
        raise click.BadParameter("Use the format `Maria Muster <maria@example.org>`.")
    return {"name": match[1], "email": match[2]}


def _parse_labels(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    for value in filter(None, values):
        if not all(value.partition("=")):
            raise click.BadParameter("Use the format KEY=VALUE, such as gpu=yes.")
    return {name: text for name, _, text in (value.partition("=") for value in values if value)} if values else None


def _list_option(name: str, text: str) -> Callable[[F], F]:
    return click.option(f"--{name}", f"{name}s", multiple=True, help=f"{text} Repeatable.")


@click.command("set")
@click.argument("project", metavar="PROJECT", shell_complete=complete_projects)
@click.option("--name", help="New name.")
@click.option("--repository", help="New address of the repository.")
@click.option("--base", help="Branch to start from and to merge into.")
@click.option("--forge", type=click.Choice(["auto", "github", "plain"]), help="Type of forge.")
@click.option("--api-url", help="API URL of a GitHub Enterprise Server.")
@click.option(
    "--verify", metavar="COMMAND", help="Command that must succeed before changes are pushed, such as `make test`."
)
@click.option(
    "--setup",
    metavar="COMMAND",
    help="Command that prepares a checkout, once per base commit.  [default: .sandyard/setup.sh, or from devcontainer.json]",
)
@click.option("--agent", shell_complete=complete_agents, help="Default agent for tasks.")
@click.option("--model", help="Default model for tasks.")
@click.option(
    "--permissions",
    type=click.Choice(["ask", "allow_reads", "allow_all"]),
    help="What agents may do in their sandbox without asking.",
)
@click.option(
    "--deny",
    "deny_patterns",
    multiple=True,
    metavar="PATTERN",
    help="Always deny permission requests that match this regular expression. Repeatable.",
)
@click.option(
    "--network",
    type=click.Choice(["none", "listed", "all", ""]),
    help="What its sandboxes may connect to: nothing, the listed presets and hosts, or everything.",
)
@click.option(
    "--network-preset",
    "network_presets",
    multiple=True,
    type=click.Choice([*NETWORK_PRESETS, ""]),
    help="With listed: the project's forge or a package registry. Repeatable.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="HOST",
    help="With listed: a domain name, *.example.org, an address or a CIDR. Repeatable.",
)
@click.option("--parallel", type=click.IntRange(1, 200), help="Maximum number of attempts that run at the same time.")
@click.option("--budget-usd", type=BUDGET, help="Budget per task in US dollars; 0 means no limit.")
@click.option(
    "--monthly-budget-usd", type=BUDGET, help="Budget per month for the whole project in US dollars; 0 means no limit."
)
@click.option("--issue-label", help="Issues with this label become tasks.")
@click.option("--template", help="Template of its sandboxes.")
@click.option(
    "--isolation",
    type=click.Choice(["namespace", "gvisor", ""]),
    help="Isolation of new sandboxes: Linux namespaces on the host's kernel, or gVisor, a separate kernel per sandbox.",
)
@click.option(
    "--containers/--no-containers",
    default=None,
    help="Whether programs in new sandboxes may run containers (Docker).  [default: the template's]",
)
@click.option(
    "--host-label",
    "host_labels",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_parse_labels,
    help="Run new sandboxes only on hosts with this label. Repeatable.",
)
@click.option("--idle-seconds", type=click.IntRange(5), help="Pause sandboxes after this many idle seconds.")
@click.option("--author", callback=_parse_identity, help="Author of commits: `Name <email>`.")
@click.option("--committer", callback=_parse_identity, help="Committer, if different from the author.")
@click.option("--co-author", callback=_parse_identity, help="Co-author of commits.  [default: the session's agent]")
@click.option(
    "--commit-messages", type=click.Choice(["conventional", "any"]), help="Required format of commit messages."
)
@click.option(
    "--ci-files",
    type=click.Choice(["refuse", "allow"]),
    help="Whether commits may be pushed that change what CI runs, such as .github/workflows.  [default: refuse]",
)
@click.option("--draft/--ready", default=None, help="Open pull requests as drafts or ready for review.")
@_list_option("label", "Label of pull requests.")
@_list_option("reviewer", "Reviewer of pull requests.")
@_list_option("assignee", "Assignee of pull requests.")
@click.option("--merge-method", type=click.Choice(["squash", "merge", "rebase"]), help="How pull requests are merged.")
@click.option("--delete-branch/--keep-branch", default=None, help="Delete or keep branches after merging.")
@click.option("--archive/--unarchive", "archived", default=None, help="Archive or unarchive the project.")
@output_option
def change(project: str, output: str | None, **options: Any) -> None:
    """Change a project's settings. An empty value resets a setting: --template '' or --label ''."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if not given:
        raise click.UsageError("Nothing to change. For the available options, see `sandyard project set --help`.")
    with connect() as client:
        path = f"/projects/{quote_segment(get_project_id(client, project))}"
        body: dict[str, Any] = {
            field: given[name] or None for name, field in (("name", "name"), ("base", "baseBranch")) if name in given
        }
        if "repository" in given:
            body["repository"] = resolve_repository(given["repository"]) or None
        if "archived" in given:
            body["archived"] = given["archived"]
        if settings := {name: value for name, value in given.items() if name in SETTING_PATHS}:
            body["settings"] = change_settings(client.get(path)["settings"], settings)
        changed = client.patch(path, body)
    show_one(changed, FIELDS, output)


def change_settings(settings: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return `settings` updated with the given options."""
    settings = {**settings}
    for name, value in given.items():
        *parts, field = SETTING_PATHS[name]
        target = settings
        for part in parts:
            target[part] = target = {**(target.get(part) or {})}
        if isinstance(value, tuple):
            target[field] = [item for item in value if item]
        else:
            target[field] = None if value == "" or (name in BUDGET_OPTIONS and not value) else value
    return settings


def resolve_repository(repository: str) -> str:
    """Return a local directory as an absolute path, because the server has another working directory. Anything else is unchanged."""
    if "://" in repository or not repository:
        return repository
    path = Path(repository).expanduser()
    return str(path.resolve()) if path.is_dir() else repository
