"""`sandyard git checkpoint, checkpoints, restore`: save and restore complete work trees."""

from __future__ import annotations

import click

from sandyard.cli.connection import connect, segment
from sandyard.cli.git.running import carry_out, submit
from sandyard.cli.git.told import told
from sandyard.cli.git.workplace import session_of, workplace_argument
from sandyard.cli.options import limit_option
from sandyard.cli.output import output_option, show_list

COLUMNS = {
    "ID": "id",
    "CREATED": "createdAt",
    "REASON": "reason",
    "BRANCH": "branch",
    "CHANGED FILES": "changed",
    "SANDBOX": "sandboxId",
}


@click.command()
@workplace_argument
@output_option
def checkpoint(workplace: str, output: str | None) -> None:
    """Save all files as a checkpoint, committed or not. This also happens before each pause and push."""
    with connect() as client:
        done = carry_out(client, "checkpoint", workplace)
    told(done, f"Created checkpoint {done['detail'].get('checkpointId')}.", output)


@click.command()
@workplace_argument
@limit_option()
@output_option
def checkpoints(workplace: str, limit: int, output: str | None) -> None:
    """List a session's checkpoints, newest first."""
    with connect() as client:
        page = client.pages(f"/sessions/{segment(session_of(client, workplace))}/checkpoints", limit)
    show_list(page, COLUMNS, output, nothing="No checkpoints.")


@click.command()
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@output_option
def restore(checkpoint_id: str, output: str | None) -> None:
    """Restore a session to CHECKPOINT, in a new sandbox. Its current state is saved as a checkpoint first."""
    with connect() as client:
        done = submit(client, "restore", {"checkpointId": checkpoint_id}, checkpoint_id)
    told(done, f"Restored session {done.get('sessionId')} in sandbox {done.get('sandboxId')}.", output)
