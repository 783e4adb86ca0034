"""`sandyard project prepare` and `sandyard project preparations`: snapshots that a project's sessions and tasks start from."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.connection import connect, get_project_id, quote_segment
from sandyard.cli.errors import FAILED
from sandyard.cli.options import drop_missing, limit_option
from sandyard.cli.output import echo, escape, escape_line, output_option, show_list, show_one
from sandyard.cli.projects.members import project_argument

if TYPE_CHECKING:
    from sandyard.cli.client import Client

POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 900.0
"""The repository may have to be fetched for the first time, which takes long."""
COLUMNS = {
    "ID": "id",
    "STATUS": "status",
    "AGENT": "agent",
    "BASE": "baseBranch",
    "COMMIT": "baseCommit",
    "STEP": "step",
    "USED": "usedAt",
}
FIELDS = {
    "id": "id",
    "status": "status",
    "agent": "agent",
    "template": "template",
    "base": "baseBranch",
    "commit": "baseCommit",
    "setup": "sources",
    "AGENTS.md": "agentsMd",
    "used": "usedAt",
}


@click.command()
@project_argument
@click.option("--agent", help="Agent to install.  [default: the project's]")
@click.option("--base", help="Branch whose latest commit is prepared.  [default: the project's base branch]")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is ready.")
@output_option
def prepare(project: str, agent: str | None, base: str | None, wait: bool, output: str | None) -> None:
    """Prepare a snapshot that later sessions start from.

    Checks out the project, runs its setup and installs the agent once.

    The setup is the project's own command (`sandyard project set`), or .sandyard/setup.sh of the repository, or what its
    devcontainer.json defines. Tasks prepare automatically; if you prepare in advance, the first task does not have to wait. A failed
    preparation is retried. Ctrl-C does not stop it. The exit code is 1 if it failed.
    """
    with connect(timeout=TIMEOUT_SECONDS) as client:
        path = f"/projects/{quote_segment(get_project_id(client, project))}/preparations"
        preparation = client.post(path, drop_missing(agent=agent, baseBranch=base))
        if wait:
            preparation = _wait_until_ready(client, preparation)
    for warning in preparation.get("warnings") or []:
        echo(f"Note: {escape(str(warning))}", err=True)
    show_one(preparation, FIELDS, output)
    if preparation["status"] == "failed":
        for line in f"Error: {preparation.get('error') or 'Preparation failed.'}".splitlines():
            echo(escape_line(line), err=True)
        sys.exit(FAILED)


def _wait_until_ready(client: Client, preparation: Any) -> Any:
    shown_step = None
    while preparation["status"] == "preparing":
        if preparation.get("step") != shown_step:
            shown_step = preparation.get("step")
            echo(f"{escape(str(shown_step))} …", err=True)
        time.sleep(POLL_SECONDS)
        preparation = client.get(f"/preparations/{quote_segment(preparation['id'])}")
    return preparation


@click.command()
@project_argument
@click.option("--delete", "deleted", metavar="ID", help="Delete this preparation and its snapshot.")
@limit_option()
@output_option
def preparations(project: str, deleted: str | None, limit: int, output: str | None) -> None:
    """List a project's preparations, newest first. Unused ones are deleted automatically."""
    with connect() as client:
        if deleted is not None:
            client.delete(f"/preparations/{quote_segment(deleted)}")
            echo(f"Deleted {deleted}.", err=True)
            return
        page = client.list_items(f"/projects/{quote_segment(get_project_id(client, project))}/preparations", limit)
    show_list(page, COLUMNS, output, empty_message="No preparations. To create one: sandyard project prepare PROJECT")
