"""`sandyard api-key`: tokens for the platform's API. For the engine's keys, see `sandyard keys`."""

from __future__ import annotations

import click

from sandyard.cli.completion import complete_tokens
from sandyard.cli.connection import connect, quote_segment
from sandyard.cli.options import drop_missing, limit_option
from sandyard.cli.output import echo, output_option, print_json, show_list, wants_json

COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "PREFIX": "hint",
    "CREATED": "createdAt",
    "LAST USED": "lastUsedAt",
    "EXPIRES": "expiresAt",
}


@click.group("api-key")
def api_key() -> None:
    """Create, list and revoke tokens for the platform's API."""


@api_key.command()
@click.argument("name")
@output_option
def create(name: str, output: str | None) -> None:
    """Create a token and show it once. NAME describes its use."""
    with connect() as client:
        token = client.post("/tokens", drop_missing(name=name))
    if wants_json(output):
        print_json(token)
        return
    echo(token["value"])
    echo("Save this token now: it is not shown again.", err=True)


@api_key.command("list")
@limit_option()
@output_option
def list_tokens(limit: int, output: str | None) -> None:
    """List tokens. Their values are not stored."""
    with connect() as client:
        page = client.list_items("/tokens", limit)
    show_list(page, COLUMNS, output, empty_message="No tokens.")


@api_key.command()
@click.argument("token_id", metavar="TOKEN_ID", shell_complete=complete_tokens)
def revoke(token_id: str) -> None:
    """Revoke a token by its id."""
    with connect() as client:
        client.delete(f"/tokens/{quote_segment(token_id)}")
    echo(f"Revoked {token_id}.", err=True)
