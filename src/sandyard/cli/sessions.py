"""`sandyard session`: one agent working, with a sandbox of its own."""

from __future__ import annotations

import click

from sandyard.cli.completion import project_ids, session_ids
from sandyard.cli.connection import connect, project_of, segment
from sandyard.cli.git.checkout import until_checked_out
from sandyard.cli.options import env_option, given, limit_option
from sandyard.cli.output import output_option, show_list, show_one
from sandyard.cli.sandboxes.waiting import until_settled
from sandyard.cli.turns import allow, answer, cancel, prompt, transcript

COLUMNS = {
    "ID": "id",
    "TITLE": "title",
    "SANDBOX": "sandboxId",
    "STATUS": "sandbox.status",
    "PROJECT": "projectId",
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
    "error": "sandbox.error",
    "created": "createdAt",
    "checkpoint": "checkpointAt",
    "archived": "archivedAt",
}
session_argument = click.argument("session_id", metavar="SESSION", shell_complete=session_ids)


@click.group()
def session() -> None:
    """Sessions: one agent working, with a sandbox of its own."""


@session.command()
@click.option("--title", help="What it is about.")
@click.option("--project", shell_complete=project_ids, help="The project it belongs to, whose repository it gets.")
@click.option("--template", help="The root file system of its sandbox.")
@click.option("--agent", help="Who works in it.")
@env_option
@click.option("--wait", is_flag=True, help="Return when the sandbox runs and the repository is in it.")
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
    """Open a session; its sandbox is made in the background."""
    with connect() as client:
        project_id = project_of(client, project) if project else None
        body = given(title=title, projectId=project_id, template=template, agent=agent, envs=envs)
        made = client.post("/sessions", body)
        if wait:
            until_settled(client, made["sandboxId"])
            until_checked_out(client, made)
            made = client.get(f"/sessions/{segment(made['id'])}")
    show_one(made, FIELDS, output)


@session.command("list")
@click.option("--project", shell_complete=project_ids, help="Only those of this project.")
@click.option("--archived", is_flag=True, help="Only archived ones.")
@limit_option()
@output_option
def list_sessions(project: str | None, archived: bool, limit: int, output: str | None) -> None:
    """Sessions, newest first."""
    with connect() as client:
        project_id = project_of(client, project) if project else None
        page = client.pages("/sessions", limit, projectId=project_id, archived=True if archived else None)
    show_list(page, COLUMNS, output, nothing="There is no session. `sandyard session create` opens one.")


@session.command()
@session_argument
@output_option
def show(session_id: str, output: str | None) -> None:
    """One session and its sandbox. Looking does not wake it."""
    with connect() as client:
        show_one(client.get(f"/sessions/{segment(session_id)}"), FIELDS, output)


@session.command()
@session_argument
@click.argument("title")
@output_option
def rename(session_id: str, title: str, output: str | None) -> None:
    """Give a session another title."""
    with connect() as client:
        show_one(client.patch(f"/sessions/{segment(session_id)}", {"title": title}), FIELDS, output)


@session.command()
@session_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(session_id: str, yes: bool) -> None:
    """Delete a session and its sandbox, with everything in it."""
    if not yes:
        click.confirm(f"Delete {session_id} and its sandbox?", abort=True, err=True)
    with connect() as client:
        client.delete(f"/sessions/{segment(session_id)}")


def _verb(name: str, help_text: str) -> None:
    @session.command(name, help=help_text)
    @session_argument
    @output_option
    def verb(session_id: str, output: str | None) -> None:
        path = f"/sessions/{segment(session_id)}"
        with connect() as client:
            client.post(f"{path}/{name}")
            show_one(client.get(path), FIELDS, output)  # pause and resume answer with the sandbox


for command in (prompt, transcript, cancel, answer, allow):
    session.add_command(command)

_verb("archive", "Put a session away; its sandbox is paused.")
_verb("checkpoint", "Keep the files of the session's sandbox as they are now.")
_verb("pause", "Pause the session's sandbox. The next use wakes it.")
_verb("resume", "Wake the session's sandbox.")
_verb("provision", "Give the session a new sandbox, from its last checkpoint.")
