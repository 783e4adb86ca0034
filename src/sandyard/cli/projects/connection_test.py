"""Run a project's connection test and print its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.connection import quote_segment
from sandyard.cli.output import echo, escape

if TYPE_CHECKING:
    from sandyard.cli.client import Client


TEST_FAILED = "connection_test_failed"
"""Error code if settings were not saved because their connection test failed. `findings` of the error are those of the test."""


def run_connection_test(client: Client, project_id: str) -> Any:
    """Test the connection to the remote and the forge. Changes nothing there."""
    return client.post(f"/projects/{quote_segment(project_id)}/test")


def print_findings(result: Any, *, err: bool) -> None:
    """Print findings such as `✓ repository: https://… responds`."""
    for finding in result["findings"]:
        mark = click.style("✓", fg="green") if finding["ok"] else click.style("✗", fg="red")
        echo(f"{mark} {escape(finding['what'].replace('_', ' '))}: {escape(finding['detail'])}", err=err)
