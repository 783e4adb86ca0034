"""`sandyard git branch, stage, commit, discard, tag`: commands that change a checkout but not the remote."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sandyard.cli.connection import connect
from sandyard.cli.git.running import carry_out
from sandyard.cli.git.told import counted, told
from sandyard.cli.git.workplace import workplace_argument
from sandyard.cli.options import given
from sandyard.cli.output import output_option

paths_argument = click.argument("paths", metavar="[PATH]...", nargs=-1)


@click.command()
@workplace_argument
@click.argument("name")
@click.option("--start", help="Branch, tag or commit to start from.  [default: the current commit]")
@output_option
def branch(workplace: str, name: str, start: str | None, output: str | None) -> None:
    """Create the branch NAME and switch to it."""
    with connect() as client:
        done = carry_out(client, "branch", workplace, given(name=name, start=start))
    told(done, f"On branch {done['detail'].get('branch') or name}.", output)


@click.command()
@workplace_argument
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--unstage", is_flag=True, help="Unstage instead; the files are not changed.")
@output_option
def stage(workplace: str, paths: tuple[str, ...], unstage: bool, output: str | None) -> None:
    """Stage changes of PATHs for the next commit."""
    with connect() as client:
        done = carry_out(client, "stage", workplace, given(paths=paths, unstage=unstage or None))
    told(done, "Unstaged." if unstage else "Staged.", output)


@click.command()
@workplace_argument
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
    workplace: str,
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
    message = "\n\n".join(messages) if messages else _read(file or "")
    body = given(message=message, paths=paths, everything=False if staged else None)
    with connect() as client:
        done = carry_out(client, "commit", workplace, body)
    subject = message.strip().partition("\n")[0]
    told(done, f"[{str(done['detail'].get('commit') or '')[:10]}] {subject}", output)


@click.command()
@workplace_argument
@paths_argument
@click.option("--all", "everything", is_flag=True, help="Discard all changes, including untracked files.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def discard(workplace: str, paths: tuple[str, ...], everything: bool, yes: bool, output: str | None) -> None:
    """Discard uncommitted changes.

    Earlier checkpoints still contain them: `sandyard git checkpoints`.
    """
    if bool(paths) == everything:
        raise click.UsageError("Give PATHs, or use --all.")
    if not yes:
        what = "all uncommitted changes" if everything else f"the changes in {', '.join(paths)}"
        click.confirm(f"Discard {what}?", abort=True, err=True)
    with connect() as client:
        done = carry_out(client, "discard", workplace, given(paths=paths, everything=everything or None))
    told(done, f"Discarded the changes in {counted(int(done['detail'].get('count') or 0), 'file')}.", output)


@click.command()
@workplace_argument
@click.argument("name")
@click.option("-m", "--message", help="Create an annotated tag with this message.")
@click.option("--push", is_flag=True, help="Push the tag to the remote.")
@output_option
def tag(workplace: str, name: str, message: str | None, push: bool, output: str | None) -> None:
    """Tag the checked out commit as NAME."""
    with connect() as client:
        done = carry_out(client, "tag", workplace, given(name=name, message=message, push=push or None))
    told(done, f"Created and pushed tag {name}." if push else f"Created tag {name}.", output)


def _read(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text()
