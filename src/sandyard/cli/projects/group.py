"""`sandyard project`: add, list, show, change, test and delete projects."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import project_ids
from sandyard.cli.connection import connect, project_of, segment
from sandyard.cli.errors import FAILED, ApiError, CommandError
from sandyard.cli.options import given, limit_option
from sandyard.cli.output import as_json, output_option, print_json, show_list, show_one
from sandyard.cli.projects.checking import look, tell
from sandyard.cli.projects.credentials import credential_options, gather
from sandyard.cli.projects.members import members, project_argument
from sandyard.cli.projects.preparations import preparations, prepare
from sandyard.cli.projects.repository import located
from sandyard.cli.projects.settings import change
from sandyard.cli.projects.showing import COLUMNS, CREDENTIALS, FIELDS
from sandyard.kit.errors import SandyardError

if TYPE_CHECKING:
    from sandyard.cli.client import Client

KINDS = {"token": "token", "ssh-key": "ssh_key", "app": "app", "webhook-secret": "webhook_secret"}


@click.group()
def project() -> None:
    """Projects: a repository, what opens it, and who works on it. PROJECT is a name or an id."""


@project.command()
@click.argument("name")
@click.option(
    "--repository", required=True, help="Its address: https://…, git@host:owner/name, or a path on the server."
)
@click.option("--base", help="The branch to start from and to merge into.  [default: the repository's own]")
@click.option("--forge", type=click.Choice(["auto", "github", "plain"]), help="What it lies on.  [default: auto]")
@click.option("--api-url", help="Of a GitHub Enterprise Server.")
@click.option("--no-token", is_flag=True, help="Do not ask for a token: everybody may read it, or a key opens it.")
@credential_options
@click.option("--test/--no-test", default=True, show_default=True, help="Try right away whether it works.")
@output_option
def add(
    *,
    name: str,
    repository: str,
    base: str | None,
    forge: str | None,
    api_url: str | None,
    no_token: bool,
    test: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Add a project, and try whether its repository can be used.

    The token is asked for, or read from standard input with --token-stdin; it never is an argument, which others on this machine
    could see. The exit code is 1 when the project was added but does not work yet.
    """
    if no_token and options["token_stdin"]:
        raise click.UsageError("Either --token-stdin or --no-token, not both.")
    credentials = gather(repository=repository, ask=not no_token, **options)
    settings = given(forge=given(kind=forge, apiUrl=api_url))
    body = given(name=name, repository=located(repository), baseBranch=base, settings=settings)
    with connect() as client:
        made = client.post("/projects", body)
        if credentials:
            try:
                _put(client, made["id"], credentials)
            except SandyardError as error:
                again = f"Give it one with `sandyard project token {made['id']}`"
                raise CommandError(
                    f"{name} was added as {made['id']}, but not its credential: {error.message} {again}."
                ) from None
        found = look(client, made["id"]) if test else None
    show_one(made, FIELDS, output)
    if found is not None:
        tell(found, err=True)
        if not found["ok"]:
            click.echo(
                f"{name} was added, but does not work yet. To look again: sandyard project test {made['id']}", err=True
            )
            sys.exit(FAILED)


@project.command("list")
@click.option("--archived", is_flag=True, help="Those that were put away.")
@limit_option()
@output_option
def list_projects(archived: bool, limit: int, output: str | None) -> None:
    """Projects you own or work on, newest first."""
    with connect() as client:
        page = client.pages("/projects", limit, archived=True if archived else None)
    show_list(page, COLUMNS, output, nothing="There is no project. `sandyard project add` adds one.")


@project.command()
@project_argument
@output_option
def show(project: str, output: str | None) -> None:
    """One project, and which credentials it has. Nobody is shown their values."""
    with connect() as client:
        path = f"/projects/{segment(project_of(client, project))}"
        found = client.get(path)
        show_one(found, FIELDS, output)
        if as_json(output):
            return
        try:
            credentials = client.get(f"{path}/credentials")
        except ApiError as error:
            if error.http_status != 403:  # a member need not see them
                raise
            return
    click.echo()
    show_list(credentials, CREDENTIALS, "table", nothing="It has no credential.")


@project.command()
@project_argument
@credential_options
@click.option("--remove", "removed", type=click.Choice(list(KINDS)), help="Take one away instead.")
@click.option("--test/--no-test", default=True, show_default=True, help="Try right away whether it works.")
def token(*, project: str, removed: str | None, test: bool, **options: Any) -> None:
    """Give a project a new token, key, app or webhook secret.

    It takes the place of the one of its kind. Without an option, the token is asked for.
    """
    with connect() as client:
        project_id = project_of(client, project)
        path = f"/projects/{segment(project_id)}"
        if removed is not None:
            client.delete(f"{path}/credentials/{KINDS[removed]}")
            click.echo(f"{project} has no {removed} any more.", err=True)
            return
        credentials = gather(repository=client.get(path).get("repository"), ask=True, **options)
        if not credentials:
            raise CommandError("There is nothing to store: give a token with --token-stdin, or a key with --ssh-key.")
        _put(client, project_id, credentials)
        click.echo("Stored.", err=True)
        if test:
            found = look(client, project_id)
            tell(found, err=True)
            sys.exit(0 if found["ok"] else FAILED)


@project.command()
@project_argument
@output_option
def test(project: str, output: str | None) -> None:
    """Try whether a project's repository and forge work. The exit code is 1 when not."""
    with connect() as client:
        found = look(client, project_of(client, project))
    print_json(found) if as_json(output) else tell(found, err=False)
    sys.exit(0 if found["ok"] else FAILED)


@project.command()
@click.argument("project", metavar="PROJECT", shell_complete=project_ids)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(project: str, yes: bool) -> None:
    """Delete a project with its tasks and credentials. The repository itself stays as it is, sessions stay their owners'."""
    with connect() as client:
        project_id = project_of(client, project)
        if not yes:
            click.confirm(f"Delete {project} with its tasks and credentials?", abort=True, err=True)
        client.delete(f"/projects/{segment(project_id)}")
    click.echo(f"{project} is deleted.", err=True)


def _put(client: Client, project_id: str, credentials: dict[str, Any]) -> None:
    client.request("PUT", f"/projects/{segment(project_id)}/credentials", body=credentials)


for command in (change, members, prepare, preparations):
    project.add_command(command)
