"""`sandyard encryption-key`: the keys that encrypt stored secrets."""

from __future__ import annotations

from typing import Any

import click

from sandyard.cli.connection import connect
from sandyard.cli.output import echo, output_option, print_json, show_list, wants_json

TIMEOUT_SECONDS = 600.0
_COLUMNS = {"PART": "place", "ID": "id", "VALUES": "values", "IN USE": "current"}


@click.group("encryption-key")
def encryption_key() -> None:
    """List and rotate the keys that encrypt secrets in the databases of the platform and the engine."""


@encryption_key.command("list")
@output_option
def list_keys(output: str | None) -> None:
    """List the keys, and how many stored values each has encrypted."""
    with connect(timeout=TIMEOUT_SECONDS) as client:
        _show(client.get("/encryption-keys"), output)


@encryption_key.command()
@output_option
def rotate(output: str | None) -> None:
    """Encrypt all stored secrets with new keys. Sandyard can keep running.

    Do this regularly, or if somebody may have read a key file. The old keys are removed from the key files a day later.
    """
    with connect(timeout=TIMEOUT_SECONDS) as client:
        found = client.post("/encryption-keys/rotate")
    _show(found, output)
    if not wants_json(output):
        echo("Everything is encrypted with new keys. The old ones are removed a day from now.", err=True)


def _show(found: dict[str, Any], output: str | None) -> None:
    if wants_json(output):
        print_json(found)
        return
    show_list({**found, "nextCursor": None}, _COLUMNS, output, empty_message="There are no keys.")
    if found["unreadable"]:
        echo(
            f"{found['unreadable']} values cannot be decrypted, because their key is missing from the key file.",
            err=True,
        )
    if found["engineError"]:
        echo(f"The engine's keys are not included: {found['engineError']}", err=True)
