"""`sandyard sandbox`: create, list, pause, resume, fork and kill sandboxes."""

from __future__ import annotations

import sys

import click

from sandyard.cli.completion import complete_projects, complete_sandboxes
from sandyard.cli.connection import connect, get_project_id, get_sandbox_id, quote_segment
from sandyard.cli.options import drop_missing, env_option, limit_option
from sandyard.cli.output import echo, fit_table, output_option, show_list, show_one, wants_json
from sandyard.cli.sandboxes.copy import cp
from sandyard.cli.sandboxes.execute import execute
from sandyard.cli.sandboxes.logs import logs
from sandyard.cli.sandboxes.previews import ports, preview
from sandyard.cli.sandboxes.readiness import wait_until_ready
from sandyard.cli.sandboxes.shell import shell
from sandyard.kit.errors import SandyardError

STATUSES = ["provisioning", "running", "paused", "error", "destroyed"]
COLUMNS = {
    "ID": "id",
    "STATUS": "status",
    "TITLE": "title",
    "PROJECT": "projectName",
    "TEMPLATE": "template",
    "SESSION": "sessionId",
    "COMMANDS": "commandCount",
    "CREATED": "createdAt",
}
NARROW_COLUMNS = {"ID": "id", "STATUS": "status", "TITLE": "title", "PROJECT": "projectName", "CREATED": "createdAt"}
FIELDS = {
    "id": "id",
    "status": "status",
    "error": "error",
    "title": "title",
    "project": "projectName",
    "template": "template",
    "isolation": "isolation",
    "session": "sessionId",
    "agent": "agentId",
    "task": "taskId",
    "commands": "commandCount",
    "created": "createdAt",
    "paused": "pausedAt",
    "destroyed": "destroyedAt",
}
DENIED_COLUMNS = {"HOST": "host", "PORT": "port", "PROTOCOL": "protocol", "FIRST SEEN": "at"}
sandbox_argument = click.argument("sandbox_id", metavar="SANDBOX", shell_complete=complete_sandboxes)


@click.group()
def sandbox() -> None:
    """Manage sandboxes: run commands, copy files, pause, fork. A session id can be used instead of SANDBOX."""


@sandbox.command()
@click.option("--template", help="Template to start from.  [default: the project's]")
@click.option(
    "--project",
    shell_complete=complete_projects,
    help="Project whose settings apply and whose repository can be cloned.",
)
@env_option
@click.option("--idle-seconds", type=click.IntRange(5), help="Pause after this many idle seconds.  [default: 300]")
@click.option("--agent", "agent_id", help="Agent that will use the sandbox.")
@click.option("--task", "task_id", help="Task that the sandbox belongs to.")
@output_option
def create(
    *,
    template: str | None,
    project: str | None,
    envs: dict[str, str],
    idle_seconds: int | None,
    agent_id: str | None,
    task_id: str | None,
    output: str | None,
) -> None:
    """Create a sandbox and wait until it is running."""
    with connect() as client:
        body = drop_missing(
            template=template,
            projectId=get_project_id(client, project) if project else None,
            envs=envs,
            idleSeconds=idle_seconds,
            agentId=agent_id,
            taskId=task_id,
        )
        created = client.post("/sandboxes", body)
        if created["status"] == "provisioning":
            created = wait_until_ready(client, created["id"])
    show_one(created, FIELDS, output)


@sandbox.command("list")
@click.option("--all", "everyone", is_flag=True, help="Include other users' sandboxes that you may see.")
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    help="List only sandboxes with this status. Deleted sandboxes are listed only with `destroyed`.",
)
@limit_option()
@output_option
def list_sandboxes(everyone: bool, status: str | None, limit: int, output: str | None) -> None:
    """List sandboxes, newest first."""
    with connect() as client:
        page = client.list_items("/sandboxes", limit, all=True if everyone else None, status=status)
    owner = {"OWNER": "ownerId"} if everyone else {}
    columns, rows = COLUMNS | owner, page["items"]
    if not wants_json(output):
        columns, rows = fit_table(rows, columns, NARROW_COLUMNS | owner, "title")
    show_list(
        {**page, "items": rows},
        columns,
        output,
        empty_message="No sandboxes. To create one: sandyard sandbox create",
    )


@sandbox.command()
@sandbox_argument
@output_option
def show(sandbox_id: str, output: str | None) -> None:
    """Show a sandbox. Does not resume it."""
    with connect() as client:
        show_one(client.get(f"/sandboxes/{quote_segment(get_sandbox_id(client, sandbox_id))}"), FIELDS, output)


@sandbox.command()
@sandbox_argument
@output_option
def denied(sandbox_id: str, output: str | None) -> None:
    """List connections that the project's network settings blocked. Does not resume the sandbox."""
    with connect() as client:
        found = client.get(f"/sandboxes/{quote_segment(get_sandbox_id(client, sandbox_id))}/denied")
    if not found["available"] and not wants_json(output):
        echo("This engine does not report blocked connections.", err=True)
        return
    show_list(found, DENIED_COLUMNS, output, empty_message="No blocked connections.")


@sandbox.command()
@click.argument("sandbox_ids", metavar="SANDBOX...", nargs=-1, required=True, shell_complete=complete_sandboxes)
def kill(sandbox_ids: tuple[str, ...]) -> None:
    """Delete sandboxes with everything in them. Ignores sandboxes that are already deleted."""
    code = 0
    with connect() as client:
        for name in sandbox_ids:
            try:
                client.delete(f"/sandboxes/{quote_segment(get_sandbox_id(client, name))}")
            except SandyardError as error:
                echo(f"sandyard: {error.message}", err=True)
                code = code or getattr(error, "exit_code", 1)
    sys.exit(code)


def _add_command(name: str, help_text: str) -> None:
    @sandbox.command(name, help=help_text)
    @sandbox_argument
    @output_option
    def verb(sandbox_id: str, output: str | None) -> None:
        with connect() as client:
            show_one(
                client.post(f"/sandboxes/{quote_segment(get_sandbox_id(client, sandbox_id))}/{name}"), FIELDS, output
            )


_add_command("pause", "Pause a sandbox and keep its processes and memory. It is resumed on next use.")
_add_command("resume", "Resume a sandbox.")
_add_command("fork", "Create a copy of a sandbox in its current state.")
for command in (execute, shell, cp, logs, ports, preview):
    sandbox.add_command(command)
