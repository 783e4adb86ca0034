"""`sandyard api-key`: tokens for the platform's API. The engine's own keys are `sandyard keys`."""

from __future__ import annotations

import click

from sandyard.cli.completion import token_ids
from sandyard.cli.connection import connect, segment
from sandyard.cli.options import given, limit_option
from sandyard.cli.output import as_json, echo, output_option, print_json, show_list

COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "BEGINS": "hint",
    "CREATED": "createdAt",
    "LAST USED": "lastUsedAt",
    "EXPIRES": "expiresAt",
}


@click.group("api-key")
def api_key() -> None:
    """Make, list and revoke tokens for the platform's API."""


@api_key.command()
@click.argument("name")
@output_option
def create(name: str, output: str | None) -> None:
    """Make a token and show it, this once. NAME is what it is for."""
    with connect() as client:
        made = client.post("/tokens", given(name=name))
    if as_json(output):
        print_json(made)
        return
    echo(made["value"])
    echo("This token is not shown again.", err=True)


@api_key.command("list")
@limit_option()
@output_option
def list_tokens(limit: int, output: str | None) -> None:
    """Which tokens there are; their values are stored nowhere."""
    with connect() as client:
        page = client.pages("/tokens", limit)
    show_list(page, COLUMNS, output, nothing="There is no token.")


@api_key.command()
@click.argument("token_id", metavar="TOKEN_ID", shell_complete=token_ids)
def revoke(token_id: str) -> None:
    """End a token, named by its id."""
    with connect() as client:
        client.delete(f"/tokens/{segment(token_id)}")
    echo(f"Revoked {token_id}.", err=True)
