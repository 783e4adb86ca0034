"""The connection test of a project, as a check list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.connection import segment
from sandyard.cli.output import echo, printable

if TYPE_CHECKING:
    from sandyard.cli.client import Client


TEST_FAILED = "connection_test_failed"
"""The code of an answer that refuses to store what does not work; its `findings` are those of a test."""


def look(client: Client, project_id: str) -> Any:
    """Asks the remote and the forge, and changes nothing there."""
    return client.post(f"/projects/{segment(project_id)}/test")


def tell(found: Any, *, err: bool) -> None:
    """`✓ repository: https://… answers`"""
    for finding in found["findings"]:
        mark = click.style("✓", fg="green") if finding["ok"] else click.style("✗", fg="red")
        echo(f"{mark} {printable(finding['what'].replace('_', ' '))}: {printable(finding['detail'])}", err=err)
