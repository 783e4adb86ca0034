"""`sandyard gc`: show disk use by kind, and remove what the retention rules allow."""

from __future__ import annotations

from typing import Any

import click

from sandyard.cli.connection import connect
from sandyard.cli.output import echo, format_size, print_json, show_list, text_option, wants_json

TIMEOUT_SECONDS = 1200.0
TITLES = {
    ("engine", "sandboxes"): "sandboxes, with those created in advance",
    ("engine", "memory"): "memory of paused sandboxes",
    ("engine", "snapshots"): "snapshots",
    ("engine", "shared"): "data that only snapshots and copies need",
    ("engine", "volumes"): "volumes",
    ("engine", "removing"): "being deleted",
    ("engine", "reserved"): "reserved for new data",
    ("engine", "images"): "layers of images",
    ("engine", "layers"): "fetched layers",
    ("engine", "uploads"): "files uploaded for builds",
    ("engine", "templates"): "versions of templates",
    ("engine", "database"): "database of the engine",
    ("engine", "other"): "other files of the engine",
    ("platform", "database"): "database of the platform",
    ("platform", "output"): "output of commands and agents",
    ("platform", "repositories"): "repositories and checkpoints",
    ("platform", "preparations"): "preparations (in snapshots)",
    ("platform", "agents"): "installed agents (in snapshots)",
    ("platform", "other"): "other files of the platform",
}
_COLUMNS = {"KIND": "kind", "SIZE": "size", "NUMBER": "count", "OLDEST": "oldestAt", "REMOVABLE": "removable"}


@click.command()
@click.option("--dry-run", is_flag=True, help="Show disk use and what would be removed, and remove nothing.")
@text_option
def gc(*, dry_run: bool, output: str) -> None:
    """Free disk space: remove replaced templates, old output, unused layers of images and the like.

    Nothing that is in use is removed. How long the rest is kept is a matter of settings. Only for administrators.
    """
    with connect(timeout=TIMEOUT_SECONDS) as client:
        found = client.get("/disk") if dry_run else client.post("/disk/free")
    if wants_json(output):
        print_json(found)
        return
    entries = found["entries"] if dry_run else [entry for entry in found["entries"] if entry["removable"]]
    total = sum(entry["removableBytes"] or 0 for entry in entries)
    if dry_run:
        page = {**found, "items": [_describe(entry) for entry in entries], "nextCursor": None}
        show_list(page, _COLUMNS, "table", empty_message="No data.")
        echo(f"`sandyard gc` would remove {format_size(total)}." if total else "Nothing can be removed.")
    else:
        for entry in entries:
            size = "" if entry["removableBytes"] is None else f", {format_size(entry['removableBytes'])}"
            echo(f"Removed {_get_title(entry)}: {entry['removable']}{size}")
        echo(f"Freed {format_size(total)}." if entries else "There was nothing to remove.")
    for room in found["rooms"]:
        echo(f"{room['path']}: {format_size(room['free'])} free of {format_size(room['total'])}")
    if found["engineError"]:
        echo(f"The engine's data is not included: {found['engineError']}", err=True)


def _get_title(entry: dict[str, Any]) -> str:
    return TITLES.get((entry["place"], entry["kind"]), f"{entry['kind']} of the {entry['place']}")


def _describe(entry: dict[str, Any]) -> dict[str, Any]:
    removable = None
    if entry["removable"]:
        amount = "" if entry["removableBytes"] is None else f" ({format_size(entry['removableBytes'])})"
        removable = f"{entry['removable']}{amount}"
    size = None if entry["bytes"] is None else format_size(entry["bytes"])
    return {**entry, "kind": _get_title(entry), "size": size, "removable": removable}
