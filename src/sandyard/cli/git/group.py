"""`sandyard git`: what is done in the checkout of a session. Credentials stay with the platform: no sandbox ever sees one."""

from __future__ import annotations

import click

from sandyard.cli.git.changing import branch, commit, discard, stage, tag
from sandyard.cli.git.checkpoints import checkpoint, checkpoints, restore
from sandyard.cli.git.diff import diff
from sandyard.cli.git.operations import operations
from sandyard.cli.git.reading import log, status
from sandyard.cli.git.remote import clone, push, update


class InOrder(click.Group):
    """Commands are listed as they come in a day's work, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder)
def git() -> None:
    """Git in the checkout of a session. Wherever SESSION is asked for, a sandbox's id does as well.

    What takes longer than a moment is an operation of the server's: Ctrl-C leaves it running, and `sandyard git operations`
    shows it.
    """


for command in (
    clone,
    status,
    diff,
    log,
    branch,
    stage,
    commit,
    discard,
    update,
    push,
    tag,
    checkpoint,
    checkpoints,
    restore,
    operations,
):
    git.add_command(command)
