"""`sandyard keys`: the API keys of an engine, whether it runs or not. What changes here counts there at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click

from sandyard.cli.output import echo
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.store.keys import ApiKeys
from sandyard.kit.errors import NotFoundError


@click.group()
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="The engine's data directory.")
@click.pass_context
def keys(context: click.Context, data_dir: Path | None) -> None:
    """Make, list and revoke API keys."""
    context.obj = DataDir(EngineSettings.load(data_dir=data_dir).data_dir)


@keys.command()
@click.argument("label", default="default")
@click.pass_obj
def create(data: DataDir, label: str) -> None:
    """Make a key and show it, this once. LABEL is what it is for."""
    if not (data.path / "engine").is_dir():  # of `sandyard up`, whose engine's data is in there
        data.prepare()
    with _opened(data) as stored:
        _, secret = stored.create(label)
    echo(secret.reveal())


@keys.command("list")
@click.pass_obj
def list_keys(data: DataDir) -> None:
    """Show which keys there are; their secrets are stored nowhere."""
    with _opened(data) as stored:
        for key in stored.list():
            made = datetime.fromtimestamp(key.created_at).astimezone().isoformat(" ", "seconds")
            echo(f"{key.id}  {key.hint:10}  {made}  {key.label}")


@keys.command()
@click.argument("key")
@click.pass_obj
def revoke(data: DataDir, key: str) -> None:
    """End a key, named by its id or label. Clients that use it are refused within a second."""
    with _opened(data) as stored:
        ended = stored.revoke(key)
    echo(f"Revoked {ended.id} ({ended.label}).")


@contextlib.contextmanager
def _opened(data: DataDir) -> Iterator[ApiKeys]:
    if not data.path.is_dir() or (not data.database.exists() and (data.path / "engine").is_dir()):
        inside = data.path / "engine"
        hint = f"It is in {inside}: name that" if inside.is_dir() else "Name its directory"
        raise NotFoundError(f"There is no engine's data in {data.path}. {hint} with --data-dir.")
    database = Database(data.database)
    database.open()
    try:
        yield ApiKeys(database)
    finally:
        database.close()
