"""`sandyard git`: work in the checkout of a session. Credentials stay on the platform: sandboxes never see them."""

from __future__ import annotations

import click

from sandyard.cli.git.changing import branch, commit, discard, stage, tag
from sandyard.cli.git.checkpoints import checkpoint, checkpoints, restore
from sandyard.cli.git.diff import diff
from sandyard.cli.git.operations import operations
from sandyard.cli.git.reading import log, status
from sandyard.cli.git.remote import clone, push, update


class InOrder(click.Group):
    """Lists commands in the order they are added: by workflow, not alphabetically."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder)
def git() -> None:
    """Use git in the checkout of a session. A sandbox id can be used instead of SESSION.

    Long operations run on the server: Ctrl-C leaves them running, and `sandyard git operations` shows them.
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
