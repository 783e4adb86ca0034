"""`sandyard task logs` and `diff`: show transcripts and changes."""

from __future__ import annotations

import click

from sandyard.cli.connection import connect, quote_segment
from sandyard.cli.errors import CommandError
from sandyard.cli.git import views as git_diff
from sandyard.cli.git.failures import print_advice_on_error
from sandyard.cli.live.screen import Screen
from sandyard.cli.live.transcript import print_transcript
from sandyard.cli.output import echo, escape, print_json, text_option
from sandyard.cli.tasks.lookup import AgentNames, attempt_option, find_attempt, find_task, task_argument
from sandyard.cli.tasks.progress import follow_task


@click.command()
@task_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the progress until the task stops.")
@attempt_option
@text_option
def logs(task: str, following: bool, attempt: int | None, output: str) -> None:
    """Show the transcript. Includes prompts, replies, thoughts, tool calls and their changes.

    --follow survives dropped connections and server restarts without missing or repeating anything. It ends when the task
    stops: with exit code 0 if it is in review, ready or done, with 1 if it failed or was stopped. With JSON output, each message is a line.
    """
    with connect() as client:
        found = find_task(client, task)
        if attempt is not None:
            find_attempt(found, attempt)
        if following:
            follow_task(client, found, number=attempt, as_json=output == "json")
            return
        attempts = [item for item in found.get("attempts") or [] if attempt in {None, item["number"]}]
        if not attempts:
            find_attempt(found, None)  # reports why there is none
        agents = AgentNames(client)
        with Screen() as screen:
            for item in attempts:
                if len(attempts) > 1 and output != "json":
                    screen.print_line(f"── attempt {item['number']}: {agents.format_label(item['agent'])}", bold=True)
                print_transcript(client, item["sessionId"], screen, as_json=output == "json")


@click.command()
@task_argument
@attempt_option
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--stat", "shape", flag_value="stat", type=str, help="Show only the number of changed lines per file.")
@click.option("--name-only", "shape", flag_value="names", type=str, help="Show only the names of changed files.")
@text_option
def diff(task: str, attempt: int | None, paths: tuple[str, ...], shape: str | None, output: str) -> None:
    """Show what an attempt has changed since its base. Does not resume its sandbox."""
    with connect() as client:
        found = find_task(client, task)
        selected = find_attempt(found, attempt)
        sandbox = selected.get("sandboxId")
        if not sandbox:
            raise CommandError(f"Attempt {selected['number']} of {found['id']} has no sandbox yet.")
        with print_advice_on_error(selected["sessionId"]):
            changed = client.get(
                f"/git/{quote_segment(sandbox)}/diff", against="base", path=paths or None, patches=shape is None
            )
    if output == "json":
        print_json(changed)
    elif not changed["files"]:
        echo("No changes.", err=True)
    elif shape == "names":
        for file in changed["files"]:
            echo(escape(file["path"]))
    elif shape == "stat":
        for line in git_diff.format_stat(changed):
            echo(line)
    else:
        git_diff.print_diff(changed)
    if changed.get("truncated"):
        echo("Not all files are shown. To see others, give their PATHs.", err=True)
