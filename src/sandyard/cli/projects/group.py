"""`sandyard project`: its own commands (add, list, show, token, test, delete); other modules of this package add the others."""

from __future__ import annotations

import sys
from typing import Any

import click

from sandyard.cli.completion import complete_projects
from sandyard.cli.connection import connect, get_project_id, quote_segment
from sandyard.cli.errors import FAILED, ApiError, CommandError
from sandyard.cli.options import drop_missing, limit_option
from sandyard.cli.output import echo, escape, output_option, print_json, show_list, show_one, wants_json
from sandyard.cli.projects.connection_test import TEST_FAILED, print_findings, run_connection_test
from sandyard.cli.projects.credentials import credential_options, read_credentials
from sandyard.cli.projects.limits import limits
from sandyard.cli.projects.mcp import mcp
from sandyard.cli.projects.members import members, project_argument
from sandyard.cli.projects.preparations import preparations, prepare
from sandyard.cli.projects.settings import FIELDS, change, resolve_repository

COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "REPOSITORY": "repository",
    "BASE": "baseBranch",
    "PROBLEM": "connectionError",
    "CREATED": "createdAt",
}
CREDENTIAL_COLUMNS = {"CREDENTIAL": "kind", "HINT": "hint", "UPDATED": "updatedAt"}
CREDENTIAL_KINDS = {  # names of the options, and of the API
    "token": "token",
    "ssh-key": "ssh_key",
    "app": "app",
    "webhook-secret": "webhook_secret",
}


@click.group()
def project() -> None:
    """Manage projects: a repository, its credentials and its members. PROJECT is a name or an id."""


@project.command()
@click.argument("name")
@click.option(
    "--repository", required=True, help="Repository: https://…, git@host:owner/name, or a path on the server."
)
@click.option("--base", help="Branch to start from and to merge into.  [default: the repository's default branch]")
@click.option("--forge", type=click.Choice(["auto", "github", "plain"]), help="Type of forge.  [default: auto]")
@click.option("--api-url", help="API URL of a GitHub Enterprise Server.")
@click.option("--no-token", is_flag=True, help="Do not prompt for a token, for public repositories or SSH keys.")
@credential_options
@click.option(
    "--test/--no-test", default=True, show_default=True, help="Test the connection first and add nothing if it fails."
)
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
    """Add a project after testing its repository.

    The token is read from a prompt, or from standard input with --token-stdin. It is never an argument, because other users on this
    machine could see it.
    """
    if no_token and options["token_stdin"]:
        raise click.UsageError("Use either --token-stdin or --no-token, not both.")
    credentials = read_credentials(repository=repository, may_prompt=not no_token, **options)
    settings = drop_missing(forge=drop_missing(kind=forge, apiUrl=api_url))
    body = drop_missing(
        name=name, repository=resolve_repository(repository), baseBranch=base, settings=settings, **credentials
    )
    with connect() as client:
        try:
            created = client.post("/projects", {**body, "test": test})
        except ApiError as error:
            if error.problem_code != TEST_FAILED:
                raise
            print_findings(error.details, err=True)
            raise CommandError(f"{name} was not added. To add it anyway, use --no-test.") from None
    show_one(created, FIELDS, output)
    if note := created.get("forgeNote"):
        echo(
            f"{escape(note)} To set it: sandyard project set {escape(created['id'])} --api-url https://HOST/api/v3",
            err=True,
        )


@project.command("list")
@click.option("--archived", is_flag=True, help="Only archived projects.")
@limit_option()
@output_option
def list_projects(archived: bool, limit: int, output: str | None) -> None:
    """List your projects, newest first."""
    with connect() as client:
        page = client.list_items("/projects", limit, archived=True if archived else None)
    show_list(
        page, COLUMNS, output, empty_message="No projects. To add one: sandyard project add NAME --repository URL"
    )


@project.command()
@project_argument
@output_option
def show(project: str, output: str | None) -> None:
    """Show a project and which credentials it has. Their values are never shown."""
    with connect() as client:
        path = f"/projects/{quote_segment(get_project_id(client, project))}"
        found = client.get(path)
        show_one(found, FIELDS, output)
        if wants_json(output):
            return
        try:
            credentials = client.get(f"{path}/credentials")
        except ApiError as error:
            if error.http_status != 403:  # members may not see credentials
                raise
            return
    echo()
    show_list(credentials, CREDENTIAL_COLUMNS, "table", empty_message="No credentials.")


@project.command()
@project_argument
@credential_options
@click.option("--remove", "removed", type=click.Choice(list(CREDENTIAL_KINDS)), help="Remove a credential instead.")
@click.option(
    "--test/--no-test",
    default=True,
    show_default=True,
    help="Test the connection first and save nothing if it fails.",
)
def token(*, project: str, removed: str | None, test: bool, **options: Any) -> None:
    """Set a project's credentials.

    These are a token, an SSH key, a GitHub App or a webhook secret. Replaces the existing credential of the same kind. Without options,
    prompts for the token.
    """
    with connect() as client:
        project_id = get_project_id(client, project)
        path = f"/projects/{quote_segment(project_id)}"
        if removed is not None:
            client.delete(f"{path}/credentials/{CREDENTIAL_KINDS[removed]}")
            echo(f"Removed {removed} from {project}.", err=True)
            return
        credentials = read_credentials(repository=client.get(path).get("repository"), may_prompt=True, **options)
        if not credentials:
            raise CommandError("Nothing to save. Give a token with --token-stdin, or a key with --ssh-key.")
        needs_test = test and set(credentials) != {"webhookSecret"}  # the webhook secret is not sent to the remote
        try:
            client.request("PUT", f"{path}/credentials", body=credentials, params={"test": needs_test})
        except ApiError as error:
            if error.problem_code != TEST_FAILED:
                raise
            print_findings(error.details, err=True)
            raise CommandError("Nothing was saved. To save it anyway, use --no-test.") from None
        echo("Saved.", err=True)


@project.command()
@project_argument
@output_option
def test(project: str, output: str | None) -> None:
    """Test a project's repository and forge. The exit code is 1 if a test fails."""
    with connect() as client:
        found = run_connection_test(client, get_project_id(client, project))
    print_json(found) if wants_json(output) else print_findings(found, err=False)
    sys.exit(0 if found["ok"] else FAILED)


@project.command()
@click.argument("project", metavar="PROJECT", shell_complete=complete_projects)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(project: str, yes: bool) -> None:
    """Delete a project with its tasks, schedules, secrets and credentials. Its sessions and the repository are kept."""
    with connect() as client:
        project_id = get_project_id(client, project)
        if not yes:
            click.confirm(f"Delete {project} with its tasks, schedules, secrets and credentials?", abort=True, err=True)
        client.delete(f"/projects/{quote_segment(project_id)}")
    echo(f"Deleted {project}.", err=True)


for command in (change, limits, mcp, members, prepare, preparations):
    project.add_command(command)
