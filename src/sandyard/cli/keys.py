"""`sandyard keys`: the API keys of an engine, running or not. Changes take effect in a running engine immediately."""

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
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Data directory of the engine.")
@click.pass_context
def keys(context: click.Context, data_dir: Path | None) -> None:
    """Create, list and revoke API keys of the engine."""
    context.obj = DataDir(EngineSettings.load(data_dir=data_dir).data_dir)


@keys.command()
@click.argument("label", default="default")
@click.pass_obj
def create(data: DataDir, label: str) -> None:
    """Create a key and show it once. LABEL describes its use."""
    if not (data.path / "engine").is_dir():  # data directory of `sandyard up`, with the engine's inside
        data.prepare()
    with _open_keys(data) as stored:
        _, secret = stored.create(label)
    echo(secret.reveal())


@keys.command("list")
@click.pass_obj
def list_keys(data: DataDir) -> None:
    """List keys. Their values are not stored."""
    with _open_keys(data) as stored:
        for key in stored.list():
            created = datetime.fromtimestamp(key.created_at).astimezone().isoformat(" ", "seconds")
            echo(f"{key.id}  {key.hint:10}  {created}  {key.label}")


@keys.command()
@click.argument("key")
@click.pass_obj
def revoke(data: DataDir, key: str) -> None:
    """Revoke a key by its id or label. Clients that use it are rejected within a second."""
    with _open_keys(data) as stored:
        revoked = stored.revoke(key)
    echo(f"Revoked {revoked.id} ({revoked.label}).")


@contextlib.contextmanager
def _open_keys(data: DataDir) -> Iterator[ApiKeys]:
    url = EngineSettings.load().database_url
    if url is None and (not data.path.is_dir() or (not data.database.exists() and (data.path / "engine").is_dir())):
        engine_folder = data.path / "engine"
        hint = f"It is in {engine_folder}: choose that" if engine_folder.is_dir() else "Choose another directory"
        raise NotFoundError(f"{data.path} does not contain the data of an engine. {hint} with --data-dir.")
    database = Database(data.database)
    if url is not None:
        from sandyard.engine.store.postgres import PostgresDatabase  # noqa: PLC0415 - slow to load, and rarely used

        database = PostgresDatabase(url)
    database.open()
    try:
        yield ApiKeys(database)
    finally:
        database.close()
