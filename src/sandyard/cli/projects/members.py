"""`sandyard project members`: manage the members of a project."""

from __future__ import annotations

import click

from sandyard.cli.completion import complete_projects
from sandyard.cli.connection import connect, get_project_id, quote_segment
from sandyard.cli.output import echo, output_option, show_list
from sandyard.cli.users import find_user_id

MEMBERS = {"ID": "id", "NAME": "name"}
project_argument = click.argument("project", metavar="PROJECT", shell_complete=complete_projects)
user_argument = click.argument("user", metavar="USER")


@click.group()
def members() -> None:
    """Manage who may use a project, besides its owner."""


@members.command("list")
@project_argument
@output_option
def list_members(project: str, output: str | None) -> None:
    """List members, without the owner."""
    with connect() as client:
        page = client.get(f"/projects/{quote_segment(get_project_id(client, project))}/members")
    show_list(
        page,
        MEMBERS,
        output,
        empty_message="No members besides the owner. To add one: sandyard project members add PROJECT USER",
    )


@members.command()
@project_argument
@user_argument
def add(project: str, user: str) -> None:
    """Add USER to a project. USER is an id (or a name, for administrators). Idempotent."""
    with connect() as client:
        project_id, user_id = get_project_id(client, project), find_user_id(client, user)
        client.request("PUT", f"/projects/{quote_segment(project_id)}/members/{quote_segment(user_id)}")
    echo(f"Added {user} to {project}.", err=True)


@members.command()
@project_argument
@user_argument
def remove(project: str, user: str) -> None:
    """Remove USER from a project. Idempotent."""
    with connect() as client:
        project_id = get_project_id(client, project)
        path = f"/projects/{quote_segment(project_id)}/members"
        ids_by_name = {member["name"]: str(member["id"]) for member in client.get(path)["items"]}
        client.delete(f"{path}/{quote_segment(ids_by_name.get(user) or find_user_id(client, user))}")
    echo(f"Removed {user} from {project}.", err=True)
