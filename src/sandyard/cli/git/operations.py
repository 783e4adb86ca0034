"""`sandyard git operations`: list past, running and queued operations on repositories."""

from __future__ import annotations

from typing import Any

import click

from sandyard.cli.completion import project_ids, workplace_ids
from sandyard.cli.connection import connect, project_of, segment
from sandyard.cli.options import limit_option
from sandyard.cli.output import output_option, show_list, show_one

COLUMNS = {
    "ID": "id",
    "KIND": "kind",
    "STATUS": "status",
    "QUEUE": "position",
    "SESSION": "sessionId",
    "SANDBOX": "sandboxId",
    "CREATED": "createdAt",
    "ERROR": "error",
}
FIELDS = {
    "id": "id",
    "kind": "kind",
    "status": "status",
    "queue position": "position",
    "error": "error",
    "detail": "detail",
    "session": "sessionId",
    "sandbox": "sandboxId",
    "project": "projectId",
    "attempts": "attempts",
    "created": "createdAt",
    "started": "startedAt",
    "finished": "finishedAt",
}


@click.command()
@click.argument("name", metavar="[SESSION|OPERATION]", required=False, shell_complete=workplace_ids)
@click.option("--project", shell_complete=project_ids, help="Only operations of this project.")
@limit_option(20)
@output_option
def operations(name: str | None, project: str | None, limit: int, output: str | None) -> None:
    """List operations, newest first, or show one operation."""
    with connect() as client:
        if name is not None and name.startswith("gop_"):
            show_one(client.get(f"/git/operations/{segment(name)}"), FIELDS, output)
            return
        params: dict[str, Any] = {"projectId": project_of(client, project)} if project else {}
        if name is not None:
            params["sandboxId" if name.startswith("sbx_") else "sessionId"] = name
        page = client.pages("/git/operations", limit, **params)
    show_list(page, COLUMNS, output, nothing="No operations.")
