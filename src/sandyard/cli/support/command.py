"""`sandyard support-bundle`: collect reports, mask secrets in them, and write them into a ZIP file."""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from sandyard.cli.errors import CommandError
from sandyard.cli.output import echo
from sandyard.cli.service import read_settings_file
from sandyard.cli.support import reports
from sandyard.cli.support.masking import SecretMask
from sandyard.cli.up.data_directory import DataDirectory, get_default_data_dir
from sandyard.kit.errors import SandyardError
from sandyard.platform.settings import PlatformSettings

README = """\
A support bundle of Sandyard. Review it before you share it: secrets were replaced by ***, but it contains names, addresses and paths of
this installation.

versions.json      versions of Sandyard, its packages and the programs it uses
settings.json      settings in effect
doctor.txt         output of `sandyard doctor`
counts.json        rows in the databases, by status
migrations.json    revisions of the schemas of the databases
errors.json        the last errors of sandboxes, tasks, git operations and agents
disk.json          disk use of the data directory
servers/           responses of the running platform and engine: health, metrics, status, hosts, disk use
logs/              the last part of each log
"""


@click.command("support-bundle")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--data-dir",
    envvar="SANDYARD_DATA_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of `sandyard up`.",
)
@click.option(
    "--url", default="http://127.0.0.1:8700", show_default=True, help="Address of the platform on this machine."
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another log file to include. Repeatable.",
)
def support_bundle(file: Path, data_dir: Path | None, url: str, logs: tuple[Path, ...]) -> None:
    """Write a ZIP file with the information needed to diagnose a problem: versions, settings, logs, counts and errors.

    Secrets are replaced by ***. Sandyard may be running, stopped or unable to start.
    """
    data = DataDirectory((data_dir or get_default_data_dir()).resolve())
    if file.exists():
        raise CommandError(f"{file} exists already. Delete it, or choose another name.")
    names = collect(data, url, logs, file)
    echo(f"Wrote {file}: {', '.join(names)}.")
    echo("Review it before you share it.", err=True)


def collect(data: DataDirectory, url: str, logs: tuple[Path, ...], file: Path) -> list[str]:
    """Write the bundle, which appears when it is complete. Return the names of its files."""
    environ = {**read_settings_file(), **os.environ}
    settings = _load_settings(data, environ)
    mask = SecretMask(asyncio.run(reports.list_known_secrets(settings, data, environ)))
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    names = []
    try:
        with os.fdopen(descriptor, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in _list_parts(data, settings, environ, url, logs):
                if isinstance(content, str):
                    text = mask.apply(content)
                else:
                    text = json.dumps(mask.apply_to_document(content), indent=2, ensure_ascii=False, default=str)
                archive.writestr(name, text)
                names.append(name)
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)
    return names


def _list_parts(
    data: DataDirectory, settings: PlatformSettings, environ: Mapping[str, str], url: str, logs: tuple[Path, ...]
) -> Iterator[tuple[str, Any]]:
    yield "README.txt", README
    yield "versions.json", reports.describe_versions()
    yield "settings.json", reports.describe_settings(environ)
    yield "doctor.txt", reports.run_doctor(data, environ)
    counts, errors = asyncio.run(reports.describe_database(settings))
    yield "counts.json", {"platform": counts, "engine": reports.count_engine_rows(data)}
    yield "migrations.json", asyncio.run(reports.describe_migrations(settings, data))
    yield "errors.json", errors
    yield "disk.json", reports.describe_disk(data)
    for name, response in reports.query_servers(url, data).items():
        yield f"servers/{name}", response
    for name, text in reports.read_logs(data, logs).items():
        yield f"logs/{name}", text


def _load_settings(data: DataDirectory, environ: Mapping[str, str]) -> PlatformSettings:
    """Return the platform's settings, or the defaults if they are not valid: `settings.json` then has the error."""
    try:
        return PlatformSettings.load(environ, data_dir=data.platform)
    except SandyardError:
        return PlatformSettings.load({}, data_dir=data.platform)
