"""`sandyard task logs` and `diff`: what was said and done, and what came of it in the files."""

from __future__ import annotations

import click

from sandyard.cli.connection import connect, segment
from sandyard.cli.errors import CommandError
from sandyard.cli.git import diff as git_diff
from sandyard.cli.git.failures import advised
from sandyard.cli.output import echo, print_json, printable, text_option
from sandyard.cli.tasks.ending import follow_to_the_end
from sandyard.cli.tasks.finding import Agents, attempt_option, find_attempt, find_task, task_argument
from sandyard.cli.tasks.screen import Screen
from sandyard.cli.tasks.telling import tell


@click.command()
@task_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Go on with what happens, until it rests.")
@attempt_option
@text_option
def logs(task: str, following: bool, attempt: int | None, output: str) -> None:
    """What was said and done. Prompts, answers, thoughts, tool calls and what they changed.

    --follow survives dropped connections and restarts of the server without missing or repeating anything. It ends when the task
    rests: with 0 in review, ready or done, with 1 when it failed or was stopped. As JSON, each message is a line.
    """
    with connect() as client:
        found = find_task(client, task)
        if attempt is not None:
            find_attempt(found, attempt)
        if following:
            follow_to_the_end(client, found, number=attempt, as_json=output == "json")
            return
        attempts = [one for one in found.get("attempts") or [] if attempt in {None, one["number"]}]
        if not attempts:
            find_attempt(found, None)  # says why there is none
        agents = Agents(client)
        with Screen() as screen:
            for one in attempts:
                if len(attempts) > 1 and output != "json":
                    screen.line(f"── attempt {one['number']}: {agents.label(one['agent'])}", bold=True)
                tell(client, one["sessionId"], screen, as_json=output == "json")


@click.command()
@task_argument
@attempt_option
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--stat", "shape", flag_value="stat", type=str, help="Only how much has changed in which file.")
@click.option("--name-only", "shape", flag_value="names", type=str, help="Only which files have changed.")
@text_option
def diff(task: str, attempt: int | None, paths: tuple[str, ...], shape: str | None, output: str) -> None:
    """What an attempt has changed since its base. Looking does not wake its sandbox."""
    with connect() as client:
        found = find_task(client, task)
        one = find_attempt(found, attempt)
        sandbox = one.get("sandboxId") or client.get(f"/sessions/{segment(one['sessionId'])}").get("sandboxId")
        if not sandbox:
            raise CommandError(f"Attempt {one['number']} of {found['id']} has no sandbox yet.")
        with advised(one["sessionId"]):
            changed = client.get(
                f"/git/{segment(sandbox)}/diff", against="base", path=paths or None, patches=shape is None
            )
    if output == "json":
        print_json(changed)
    elif shape == "names":
        for file in changed["files"]:
            echo(printable(file["path"]))
    elif shape == "stat":
        for line in git_diff.stat(changed):
            echo(line)
    else:
        git_diff.show(changed)
    if changed.get("truncated"):
        echo("There are more files than are shown here: name those you want to see.", err=True)
