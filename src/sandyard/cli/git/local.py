"""`sandyard git branch, stage, commit, discard, tag, checkpoint, restore`: commands that change or save a checkout, not the remote."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sandyard.cli.connection import connect, quote_segment
from sandyard.cli.git.checkout import get_session_id, target_argument
from sandyard.cli.git.operations import print_result, run_operation, submit_operation
from sandyard.cli.options import drop_missing, limit_option
from sandyard.cli.output import output_option, pluralize, show_list

paths_argument = click.argument("paths", metavar="[PATH]...", nargs=-1)
COLUMNS = {
    "ID": "id",
    "CREATED": "createdAt",
    "REASON": "reason",
    "BRANCH": "branch",
    "CHANGED FILES": "changed",
    "SANDBOX": "sandboxId",
}


@click.command()
@target_argument
@click.argument("name")
@click.option("--start", help="Branch, tag or commit to start from.  [default: the current commit]")
@output_option
def branch(target: str, name: str, start: str | None, output: str | None) -> None:
    """Create the branch NAME and switch to it."""
    with connect() as client:
        operation = run_operation(client, "branch", target, drop_missing(name=name, start=start))
    print_result(operation, f"On branch {operation['detail'].get('branch') or name}.", output)


@click.command()
@target_argument
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--unstage", is_flag=True, help="Unstage instead; the files are not changed.")
@output_option
def stage(target: str, paths: tuple[str, ...], unstage: bool, output: str | None) -> None:
    """Stage changes of PATHs for the next commit."""
    with connect() as client:
        operation = run_operation(client, "stage", target, drop_missing(paths=paths, unstage=unstage or None))
    print_result(operation, "Unstaged." if unstage else "Staged.", output)


@click.command()
@target_argument
@paths_argument
@click.option("-m", "--message", "messages", multiple=True, help="Commit message. Repeat for further paragraphs.")
@click.option(
    "-F",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read the message from a local file; `-` reads standard input.",
)
@click.option("--staged", is_flag=True, help="Commit only staged changes.  [default: all changes]")
@output_option
def commit(
    *,
    target: str,
    paths: tuple[str, ...],
    messages: tuple[str, ...],
    file: str | None,
    staged: bool,
    output: str | None,
) -> None:
    """Commit all changes, or only PATHs.

    A message starts like `fix: …` or `feat(login): …`, unless the project is configured otherwise.
    """
    if bool(messages) == bool(file):
        raise click.UsageError("Give a message with either -m or --file.")
    if staged and paths:
        raise click.UsageError("Use either PATHs or --staged, not both.")
    message = "\n\n".join(messages) if messages else _read_message(file or "")
    body = drop_missing(message=message, paths=paths, everything=False if staged else None)
    with connect() as client:
        operation = run_operation(client, "commit", target, body)
    subject = message.strip().partition("\n")[0]
    print_result(operation, f"[{str(operation['detail'].get('commit') or '')[:10]}] {subject}", output)


@click.command()
@target_argument
@paths_argument
@click.option("--all", "everything", is_flag=True, help="Discard all changes, including untracked files.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def discard(target: str, paths: tuple[str, ...], everything: bool, yes: bool, output: str | None) -> None:
    """Discard uncommitted changes.

    Earlier checkpoints still contain them: `sandyard git checkpoints`.
    """
    if bool(paths) == everything:
        raise click.UsageError("Give PATHs, or use --all.")
    if not yes:
        what = "all uncommitted changes" if everything else f"the changes in {', '.join(paths)}"
        click.confirm(f"Discard {what}?", abort=True, err=True)
    with connect() as client:
        operation = run_operation(client, "discard", target, drop_missing(paths=paths, everything=everything or None))
    print_result(
        operation, f"Discarded the changes in {pluralize(int(operation['detail'].get('count') or 0), 'file')}.", output
    )


@click.command()
@target_argument
@click.argument("name")
@click.option("-m", "--message", help="Create an annotated tag with this message.")
@click.option("--push", is_flag=True, help="Push the tag to the remote.")
@output_option
def tag(target: str, name: str, message: str | None, push: bool, output: str | None) -> None:
    """Tag the checked out commit as NAME."""
    with connect() as client:
        operation = run_operation(client, "tag", target, drop_missing(name=name, message=message, push=push or None))
    print_result(operation, f"Created and pushed tag {name}." if push else f"Created tag {name}.", output)


def _read_message(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text()


@click.command()
@target_argument
@output_option
def checkpoint(target: str, output: str | None) -> None:
    """Save all files as a checkpoint, committed or not. This also happens before each pause and push."""
    with connect() as client:
        operation = run_operation(client, "checkpoint", target)
    print_result(operation, f"Created checkpoint {operation['detail'].get('checkpointId')}.", output)


@click.command()
@target_argument
@limit_option()
@output_option
def checkpoints(target: str, limit: int, output: str | None) -> None:
    """List a session's checkpoints, newest first."""
    with connect() as client:
        page = client.list_items(f"/sessions/{quote_segment(get_session_id(client, target))}/checkpoints", limit)
    show_list(page, COLUMNS, output, empty_message="No checkpoints.")


@click.command()
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@output_option
def restore(checkpoint_id: str, output: str | None) -> None:
    """Restore a session to CHECKPOINT, in a new sandbox. Its current state is saved as a checkpoint first."""
    with connect() as client:
        operation = submit_operation(client, "restore", {"checkpointId": checkpoint_id}, checkpoint_id)
    print_result(
        operation, f"Restored session {operation.get('sessionId')} in sandbox {operation.get('sandboxId')}.", output
    )
