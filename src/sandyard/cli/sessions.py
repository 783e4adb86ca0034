"""`sandyard session`: one agent working in its own sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import complete_projects, complete_sessions
from sandyard.cli.connection import MAX_ITEMS, connect, get_project_id, quote_segment
from sandyard.cli.git.checkout import wait_for_checkout
from sandyard.cli.options import drop_missing, env_option, limit_option
from sandyard.cli.output import output_option, show_list, show_one, wants_json
from sandyard.cli.sandboxes.readiness import wait_until_ready
from sandyard.cli.turns import allow, answer, cancel, prompt, transcript

if TYPE_CHECKING:
    from sandyard.cli.client import Client

COLUMNS = {
    "ID": "id",
    "TITLE": "title",
    "STATUS": "sandbox.status",
    "PROJECT": "projectName",
    "AGENT": "agent",
    "CREATED": "createdAt",
}
FIELDS = {
    "id": "id",
    "title": "title",
    "project": "projectId",
    "agent": "agent",
    "model": "model",
    "task": "taskId",
    "sandbox": "sandboxId",
    "status": "sandbox.status",
    "isolation": "sandbox.isolation",
    "error": "sandbox.error",
    "created": "createdAt",
    "checkpoint": "checkpointAt",
    "archived": "archivedAt",
}
session_argument = click.argument("session_id", metavar="SESSION", shell_complete=complete_sessions)


@click.group()
def session() -> None:
    """Manage sessions: one agent working in its own sandbox."""


@session.command()
@click.option("--title", help="Title.")
@click.option(
    "--project", shell_complete=complete_projects, help="Project of the session. Its repository is checked out."
)
@click.option("--template", help="Template for the session's sandbox.")
@click.option("--agent", help="Agent of the session.")
@env_option
@click.option("--wait", is_flag=True, help="Wait until the sandbox is running and the repository is checked out.")
@output_option
def create(
    *,
    title: str | None,
    project: str | None,
    template: str | None,
    agent: str | None,
    envs: dict[str, str],
    wait: bool,
    output: str | None,
) -> None:
    """Create a session. Its sandbox is created in the background."""
    with connect() as client:
        project_id = get_project_id(client, project) if project else None
        body = drop_missing(title=title, projectId=project_id, template=template, agent=agent, envs=envs)
        created = client.post("/sessions", body)
        if wait:
            wait_until_ready(client, created["sandboxId"])
            wait_for_checkout(client, created)
            created = client.get(f"/sessions/{quote_segment(created['id'])}")
    show_one(created, FIELDS, output)


@session.command("list")
@click.option("--project", shell_complete=complete_projects, help="Only sessions of this project.")
@click.option("--archived", is_flag=True, help="Only archived sessions.")
@limit_option()
@output_option
def list_sessions(project: str | None, archived: bool, limit: int, output: str | None) -> None:
    """List sessions, newest first."""
    with connect() as client:
        project_id = get_project_id(client, project) if project else None
        page = client.list_items("/sessions", limit, projectId=project_id, archived=True if archived else None)
        if not wants_json(output):
            _add_project_names(client, page["items"])
    show_list(page, COLUMNS, output, empty_message="No sessions. To create one: sandyard session create")


def _add_project_names(client: Client, sessions: list[Any]) -> None:
    """Set the field `projectName` of each session with a project."""
    if not any(item["projectId"] for item in sessions):
        return
    names = {project["id"]: project["name"] for project in client.list_items("/projects", MAX_ITEMS)["items"]}
    for item in sessions:
        item["projectName"] = names.get(item["projectId"], item["projectId"])


@session.command()
@session_argument
@output_option
def show(session_id: str, output: str | None) -> None:
    """Show a session and its sandbox. Does not resume it."""
    with connect() as client:
        show_one(client.get(f"/sessions/{quote_segment(session_id)}"), FIELDS, output)


@session.command()
@session_argument
@click.argument("title")
@output_option
def rename(session_id: str, title: str, output: str | None) -> None:
    """Change a session's title."""
    with connect() as client:
        show_one(client.patch(f"/sessions/{quote_segment(session_id)}", {"title": title}), FIELDS, output)


@session.command()
@session_argument
@click.option("--title", help="Title of the new session.")
@output_option
def fork(session_id: str, title: str | None, output: str | None) -> None:
    """Create a session with a copy of this one's sandbox, on a new branch.

    In a gVisor sandbox, running processes continue in the copy. Messages are not copied.
    """
    with connect() as client:
        created = client.post(f"/sessions/{quote_segment(session_id)}/fork", drop_missing(title=title))
    show_one(created, FIELDS, output)


@session.command()
@session_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(session_id: str, yes: bool) -> None:
    """Delete a session and its sandbox, with everything in it."""
    if not yes:
        click.confirm(f"Delete {session_id} and its sandbox?", abort=True, err=True)
    with connect() as client:
        client.delete(f"/sessions/{quote_segment(session_id)}")


def _add_command(name: str, help_text: str) -> None:
    @session.command(name, help=help_text)
    @session_argument
    @output_option
    def verb(session_id: str, output: str | None) -> None:
        path = f"/sessions/{quote_segment(session_id)}"
        with connect() as client:
            client.post(f"{path}/{name}")
            show_one(client.get(path), FIELDS, output)  # pause and resume return the sandbox


for command in (prompt, transcript, cancel, answer, allow):
    session.add_command(command)

_add_command("archive", "Archive a session and pause its sandbox.")
_add_command("checkpoint", "Save the current files of a session as a checkpoint.")
_add_command("pause", "Pause the session's sandbox. It is resumed on next use.")
_add_command("resume", "Resume the session's sandbox.")
_add_command("provision", "Create a new sandbox for the session from its last checkpoint.")
