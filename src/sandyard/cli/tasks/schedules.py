"""`sandyard schedule`: create tasks repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import complete_agents, complete_projects, complete_schedules
from sandyard.cli.connection import MAX_ITEMS, connect, get_project_id, quote_segment
from sandyard.cli.errors import ApiError, CommandError
from sandyard.cli.options import OrderedGroup, drop_missing, limit_option
from sandyard.cli.output import echo, escape, output_option, print_json, show_list, show_one, text_option, wants_json
from sandyard.cli.tasks.add import MAX_ATTEMPTS, PRIORITY, make_task_body, read_text, split_title
from sandyard.cli.tasks.progress import follow_task

if TYPE_CHECKING:
    from sandyard.cli.client import Client

COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "CRON": "cron",
    "TIME ZONE": "timezone",
    "ENABLED": "enabled",
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
    "time zone": "timezone",
    "enabled": "enabled",
    "title": "task.title",
    "agent": "task.agent",
    "next": "next",
    "last": "lastAt",
    "last task": "lastTaskId",
    "last error": "lastError",
}
PREFIX = "sch_"
schedule_argument = click.argument("schedule", metavar="SCHEDULE", shell_complete=complete_schedules)


@click.group(cls=OrderedGroup)
def schedule() -> None:
    """Manage schedules: tasks that are created repeatedly. SCHEDULE is a name or an id."""


@schedule.command()
@click.argument("cron")
@click.argument("text", required=False)
@click.option("--project", required=True, shell_complete=complete_projects, help="Project of the tasks.")
@click.option("--name", help="Name.  [default: the title of its tasks]")
@click.option("--zone", "timezone", help="Time zone, such as Europe/Vienna.  [default: UTC]")
@click.option(
    "-F",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read TEXT from a local file; `-` reads standard input.",
)
@click.option("--agent", shell_complete=complete_agents, help="Agent to use.  [default: the project's]")
@click.option("--model", help="Model to use.  [default: the project's]")
@click.option("--attempts", type=click.IntRange(1, MAX_ATTEMPTS), help="Number of parallel attempts.")
@click.option("--base", help="Branch to start from and to merge into.  [default: the project's base branch]")
@click.option("--priority", type=PRIORITY, help="Tasks with a higher priority start first.  [default: 0]")
@click.option(
    "--budget-usd",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop a task when models have cost this many US dollars.",
)
@click.option("--disabled", is_flag=True, help="Create the schedule disabled.")
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
    """Create a task from TEXT on a CRON schedule.

    \b
    sandyard schedule add "0 6 * * 1-5" "Update the dependencies" --project website
    """
    if len(cron.split()) != 5:
        raise CommandError(f"{escape(cron)!r} is not a cron expression. It needs five fields, such as 0 6 * * MON-FRI.")
    title, description = split_title(read_text(text, file))
    with connect() as client:
        body = drop_missing(
            projectId=get_project_id(client, project),
            name=name or title[:100],
            cron=cron,
            timezone=timezone,
            task=make_task_body(title, description, **options),
            enabled=False if disabled else None,
        )
        created = client.post("/schedules", body)
    _show(created, output)


@schedule.command("list")
@click.option("--project", shell_complete=complete_projects, help="Only schedules of this project.")
@limit_option()
@output_option
def list_schedules(project: str | None, limit: int, output: str | None) -> None:
    """List schedules and when they create their next task."""
    with connect() as client:
        page = client.list_items("/schedules", limit, projectId=get_project_id(client, project) if project else None)
    if not wants_json(output):
        page = {**page, "items": [_with_next_time(schedule) for schedule in page["items"]]}
    show_list(page, COLUMNS, output, empty_message="No schedules. To add one: sandyard schedule add CRON TEXT")


@schedule.command()
@schedule_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(schedule: str, yes: bool) -> None:
    """Delete a schedule. Its tasks are kept."""
    with connect() as client:
        found = find_schedule(client, schedule)
        if not yes:
            click.confirm(f"Delete the schedule {escape(found['name'])}?", abort=True, err=True)
        client.delete(f"/schedules/{quote_segment(found['id'])}")
    echo(f"Removed {escape(found['name'])}.", err=True)


@schedule.command()
@schedule_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the progress.")
@text_option
def run(schedule: str, following: bool, output: str) -> None:
    """Create the schedule's task now, in addition to its regular times. Prints the task's id."""
    with connect() as client:
        task = client.post(f"/schedules/{quote_segment(find_schedule(client, schedule)['id'])}/run")
        if output == "json":
            print_json(task, compact=following)
        else:
            echo(task["id"])
        if following:
            follow_task(client, task, as_json=output == "json")


def _add_switch_command(name: str, enabled: bool, help_text: str) -> None:
    @schedule.command(name, help=help_text)
    @schedule_argument
    @output_option
    def verb(schedule: str, output: str | None) -> None:
        with connect() as client:
            path = f"/schedules/{quote_segment(find_schedule(client, schedule)['id'])}"
            _show(client.patch(path, {"enabled": enabled}), output)


_add_switch_command("enable", True, "Enable a schedule. It creates its next task at its next regular time.")
_add_switch_command("disable", False, "Disable a schedule until it is enabled again.")


def find_schedule(client: Client, name: str) -> Any:
    if name.startswith(PREFIX):
        return client.get(f"/schedules/{quote_segment(name)}")
    found = [schedule for schedule in client.list_items("/schedules", MAX_ITEMS)["items"] if schedule["name"] == name]
    if not found:
        raise ApiError(f"There is no schedule {escape(name)!r}. To list schedules, run `sandyard schedule list`.", 404)
    if len(found) > 1:
        ids = ", ".join(schedule["id"] for schedule in found)
        raise CommandError(f"There are several schedules named {escape(name)!r}. Use an id instead: {ids}.")
    return found[0]


def _show(schedule_data: Any, output: str | None) -> None:
    show_one(schedule_data if wants_json(output) else _with_next_time(schedule_data), FIELDS, output)


def _with_next_time(schedule_data: Any) -> dict[str, Any]:
    """Add the next time as an absolute time, because it lies in the future."""
    when = schedule_data.get("nextAt") if schedule_data.get("enabled") else None
    return {**schedule_data, "next": str(when)[:16].replace("T", " ") + " UTC" if when else None}
