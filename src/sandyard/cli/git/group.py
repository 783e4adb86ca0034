"""`sandyard git`: work in the checkout of a session. Credentials stay on the platform: sandboxes never see them."""

from __future__ import annotations

import click

from sandyard.cli.git.local import branch, checkpoint, checkpoints, commit, discard, restore, stage, tag
from sandyard.cli.git.operations import operations
from sandyard.cli.git.remote import clone, push, update
from sandyard.cli.git.views import diff, log, status
from sandyard.cli.options import OrderedGroup


@click.group(cls=OrderedGroup)
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
