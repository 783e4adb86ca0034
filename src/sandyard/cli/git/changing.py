"""`sandyard git branch, stage, commit, discard, tag`: what changes a checkout and leaves the remote alone."""

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
@click.option("--start", help="The branch, tag or commit to start it at.  [default: where the checkout is]")
@output_option
def branch(workplace: str, name: str, start: str | None, output: str | None) -> None:
    """Make the branch NAME, and go there."""
    with connect() as client:
        done = carry_out(client, "branch", workplace, given(name=name, start=start))
    told(done, f"On branch {done['detail'].get('branch') or name}.", output)


@click.command()
@workplace_argument
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--unstage", is_flag=True, help="Take them out of the next commit again; the files stay as they are.")
@output_option
def stage(workplace: str, paths: tuple[str, ...], unstage: bool, output: str | None) -> None:
    """Put changes of PATHs into the next commit."""
    with connect() as client:
        done = carry_out(client, "stage", workplace, given(paths=paths, unstage=unstage or None))
    told(done, "Unstaged." if unstage else "Staged.", output)


@click.command()
@workplace_argument
@paths_argument
@click.option("-m", "--message", "messages", multiple=True, help="What it is about. Again: a further paragraph.")
@click.option(
    "-F",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read the message from a file of this machine; `-` is standard input.",
)
@click.option("--staged", is_flag=True, help="Only what is staged.  [default: everything that has changed]")
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
    """Commit everything that has changed, or only PATHs.

    A message begins as in `fix: …` or `feat(login): …`, unless the project says otherwise.
    """
    if bool(messages) == bool(file):
        raise click.UsageError("Give the message, either with -m or with --file.")
    if staged and paths:
        raise click.UsageError("Either PATHs or --staged, not both.")
    message = "\n\n".join(messages) if messages else _read(file or "")
    body = given(message=message, paths=paths, everything=False if staged else None)
    with connect() as client:
        done = carry_out(client, "commit", workplace, body)
    subject = message.strip().partition("\n")[0]
    told(done, f"[{str(done['detail'].get('commit') or '')[:10]}] {subject}", output)


@click.command()
@workplace_argument
@paths_argument
@click.option("--all", "everything", is_flag=True, help="Every change, files that git does not know yet included.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
def discard(workplace: str, paths: tuple[str, ...], everything: bool, yes: bool, output: str | None) -> None:
    """Throw away changes that were not committed.

    A checkpoint from before has them still: `sandyard git checkpoints`.
    """
    if bool(paths) == everything:
        raise click.UsageError("Name the files, or say --all.")
    if not yes:
        what = "all changes that were not committed" if everything else f"the changes of {', '.join(paths)}"
        click.confirm(f"Throw away {what}?", abort=True, err=True)
    with connect() as client:
        done = carry_out(client, "discard", workplace, given(paths=paths, everything=everything or None))
    told(done, f"Discarded the changes of {counted(int(done['detail'].get('count') or 0), 'file')}.", output)


@click.command()
@workplace_argument
@click.argument("name")
@click.option("-m", "--message", help="Make it an annotated one, with this message.")
@click.option("--push", is_flag=True, help="And send it to the remote.")
@output_option
def tag(workplace: str, name: str, message: str | None, push: bool, output: str | None) -> None:
    """Give the commit that is checked out the tag NAME."""
    with connect() as client:
        done = carry_out(client, "tag", workplace, given(name=name, message=message, push=push or None))
    told(done, f"Tagged {name}, and pushed it." if push else f"Tagged {name}.", output)


def _read(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text()
