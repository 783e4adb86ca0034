"""`sandyard schedule`: what makes a task again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import agent_names, project_ids, schedule_ids
from sandyard.cli.connection import MANY, connect, project_of, segment
from sandyard.cli.errors import ApiError, CommandError
from sandyard.cli.git.group import InOrder
from sandyard.cli.options import given, limit_option
from sandyard.cli.output import as_json, echo, output_option, print_json, printable, show_list, show_one, text_option
from sandyard.cli.tasks.adding import MOST_ATTEMPTS, PRIORITY, body_of, read, titled
from sandyard.cli.tasks.ending import follow_to_the_end

if TYPE_CHECKING:
    from sandyard.cli.client import Client

COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "CRON": "cron",
    "ZONE": "timezone",
    "ON": "enabled",
    "TITLE": "task.title",
    "NEXT": "next",
    "LAST": "lastAt",
    "ERROR": "lastError",
}
FIELDS = {
    "id": "id",
    "name": "name",
    "project": "projectId",
    "cron": "cron",
    "zone": "timezone",
    "on": "enabled",
    "title": "task.title",
    "agent": "task.agent",
    "next": "next",
    "last": "lastAt",
    "last task": "lastTaskId",
    "last error": "lastError",
}
PREFIX = "sch_"
schedule_argument = click.argument("schedule", metavar="SCHEDULE", shell_complete=schedule_ids)


@click.group(cls=InOrder)
def schedule() -> None:
    """Schedules: tasks that are made again and again. SCHEDULE is a name or an id."""


@schedule.command()
@click.argument("cron")
@click.argument("text", required=False)
@click.option("--project", required=True, shell_complete=project_ids, help="The project its tasks belong to.")
@click.option("--name", help="What it is called.  [default: the title of its tasks]")
@click.option("--zone", "timezone", help="In which time zone, as Europe/Vienna.  [default: UTC]")
@click.option(
    "-F",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read TEXT from a file of this machine; `-` is standard input.",
)
@click.option("--agent", shell_complete=agent_names, help="Who does it.  [default: as the project says]")
@click.option("--model", help="With which model.  [default: as the project says]")
@click.option("--attempts", type=click.IntRange(1, MOST_ATTEMPTS), help="So many sessions do it side by side.")
@click.option("--base", help="The branch to start from and to merge into.  [default: the project's]")
@click.option("--priority", type=PRIORITY, help="Higher ones start first.  [default: 0]")
@click.option(
    "--budget-usd", type=click.FloatRange(min=0, min_open=True), help="It stops when models have cost this much."
)
@click.option("--disabled", is_flag=True, help="Do not begin with it yet.")
@output_option
def add(
    *,
    cron: str,
    text: str | None,
    project: str,
    name: str | None,
    timezone: str | None,
    file: str | None,
    disabled: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Make a task of TEXT whenever CRON says so.

    \b
    sandyard schedule add "0 6 * * 1-5" "Update the dependencies" --project website
    """
    if len(cron.split()) != 5:
        raise CommandError(f"{printable(cron)!r} is no cron expression: it has five fields, as in 0 6 * * MON-FRI.")
    title, description = titled(read(text, file))
    with connect() as client:
        body = given(
            projectId=project_of(client, project),
            name=name or title[:100],
            cron=cron,
            timezone=timezone,
            task=body_of(title, description, **options),
            enabled=False if disabled else None,
        )
        made = client.post("/schedules", body)
    _show(made, output)


@schedule.command("list")
@click.option("--project", shell_complete=project_ids, help="Only those of this project.")
@limit_option()
@output_option
def list_schedules(project: str | None, limit: int, output: str | None) -> None:
    """Schedules, and when they make their next task."""
    with connect() as client:
        page = client.pages("/schedules", limit, projectId=project_of(client, project) if project else None)
    if not as_json(output):
        page = {**page, "items": [_row(one) for one in page["items"]]}
    show_list(page, COLUMNS, output, nothing="There is no schedule. `sandyard schedule add` adds one.")


@schedule.command()
@schedule_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def remove(schedule: str, yes: bool) -> None:
    """Delete a schedule. The tasks it has made stay."""
    with connect() as client:
        found = find(client, schedule)
        if not yes:
            click.confirm(f"Delete the schedule {printable(found['name'])}?", abort=True, err=True)
        client.delete(f"/schedules/{segment(found['id'])}")
    echo(f"{printable(found['name'])} is removed.", err=True)


@schedule.command()
@schedule_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Stay, and show what happens.")
@text_option
def run(schedule: str, following: bool, output: str) -> None:
    """Make its task now, besides the times it says. The task's id is printed."""
    with connect() as client:
        task = client.post(f"/schedules/{segment(find(client, schedule)['id'])}/run")
        if output == "json":
            print_json(task, compact=following)
        else:
            echo(task["id"])
        if following:
            follow_to_the_end(client, task, as_json=output == "json")


def _switch(name: str, enabled: bool, help_text: str) -> None:
    @schedule.command(name, help=help_text)
    @schedule_argument
    @output_option
    def verb(schedule: str, output: str | None) -> None:
        with connect() as client:
            path = f"/schedules/{segment(find(client, schedule)['id'])}"
            _show(client.patch(path, {"enabled": enabled}), output)


_switch("enable", True, "Let a schedule make tasks again, from its next time on.")
_switch("disable", False, "Let a schedule make no tasks until it is enabled again.")


def find(client: Client, name: str) -> Any:
    if name.startswith(PREFIX):
        return client.get(f"/schedules/{segment(name)}")
    found = [one for one in client.pages("/schedules", MANY)["items"] if one["name"] == name]
    if not found:
        raise ApiError(
            f"There is no schedule {printable(name)!r}. `sandyard schedule list` shows which there are.", 404
        )
    if len(found) > 1:
        ids = ", ".join(one["id"] for one in found)
        raise CommandError(f"There are several schedules {printable(name)!r}: name one by its id: {ids}.")
    return found[0]


def _show(made: Any, output: str | None) -> None:
    show_one(made if as_json(output) else _row(made), FIELDS, output)


def _row(one: Any) -> dict[str, Any]:
    """With the next time as a time, because it lies ahead."""
    when = one.get("nextAt") if one.get("enabled") else None
    return {**one, "next": str(when)[:16].replace("T", " ") + " UTC" if when else None}
