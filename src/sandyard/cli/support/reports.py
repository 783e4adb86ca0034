"""The parts of a support bundle, as text or as a JSON document, and the secrets to mask in them.

If something cannot be read, its part says why instead. Keys of the documents are for people: nothing reads them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Table, func, make_url, select
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard import __version__
from sandyard.cli.service import UP
from sandyard.cli.support.masking import MASK, is_secret_name
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.schema import STEPS
from sandyard.kit.disk_usage import measure
from sandyard.kit.errors import SandyardError
from sandyard.kit.python import SAFE_FOLDER, make_python_command, make_python_environment
from sandyard.kit.secret import Secret
from sandyard.kit.settings import Settings
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database
from sandyard.platform.db.migrate import find_drift, get_current_revision, get_newest_revision
from sandyard.platform.db.models import Base
from sandyard.platform.domain.secrets.inventory import SEALED_COLUMNS
from sandyard.platform.settings import PlatformSettings

COMMAND_SECONDS = 60
HTTP_SECONDS = 5
LOG_BYTES = 2 << 20
LOG_LINES = 5000
ERRORS_PER_TABLE = 20
MAX_ERROR_CHARACTERS = 500
KEY_FILES = ("engine.key", "platform/secret.key", "engine/secrets.key")
VERSION_COMMANDS = (
    ("git", "--version"),
    ("runsc", "--version"),
    ("criu", "--version"),
    ("nft", "--version"),
    ("systemctl", "--version"),
)
SETTINGS: Mapping[str, type[Settings]] = {"platform": PlatformSettings, "engine": EngineSettings}
_READ_ERRORS = (SandyardError, SQLAlchemyError, OSError, sqlite3.Error)


def describe_versions() -> dict[str, Any]:
    """Return the versions of Sandyard, of its packages, and of the programs and the system that it uses."""
    programs = {
        command[0]: _run(command).partition("\n")[0] for command in VERSION_COMMANDS if shutil.which(command[0])
    }
    os_release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    return {
        "sandyard": __version__,
        "python": platform.python_version(),
        "system": os_release.get("PRETTY_NAME"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "memoryBytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "root": os.geteuid() == 0,
        "sqlite": sqlite3.sqlite_version,
        "programs": programs,
        "packages": {
            item.name: item.version for item in sorted(importlib.metadata.distributions(), key=lambda item: item.name)
        },
    }


def describe_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in effect, and the environment variables that can change them. Secrets are masked."""
    described: dict[str, Any] = {}
    for name, kind in SETTINGS.items():
        try:
            settings = kind.load(environ)
        except SandyardError as error:
            described[name] = f"not valid: {error.message}"
        else:
            described[name] = {field: _describe_value(getattr(settings, field)) for field in kind.model_fields}
    prefixes = ("SANDYARD_", "E2B_", "AWS_", "OTEL_", "SSL_", "HTTP", "NO_PROXY", "LANG", "LC_", "PATH", "PYTHON")
    described["environment"] = {
        name: MASK if is_secret_name(name) else value
        for name, value in sorted(environ.items())
        if name.upper().startswith(prefixes)
    }
    return described


def _describe_value(value: Any) -> Any:
    if isinstance(value, Secret):
        return MASK
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_describe_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _describe_value(item) for key, item in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def run_doctor(data: DataDirectory, environ: Mapping[str, str]) -> str:
    """Return the output of `sandyard doctor`."""
    return _run(make_python_command("sandyard", "doctor", "--data-dir", str(data.path)), environ)


def read_logs(data: DataDirectory, extra: tuple[Path, ...]) -> dict[str, str]:
    """Return the end of each log, by file name. `extra` are log files besides that of `sandyard up` and the journal of its service."""
    logs = {}
    for path in (data.path / "up.log", *extra):
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            logs[path.name] = file.read(LOG_BYTES).decode(errors="replace")
    if shutil.which("journalctl"):
        logs["journal.log"] = _run(
            ["journalctl", "--unit", UP.unit.name, "--no-pager", "--lines", str(LOG_LINES), "--output", "short-iso"]
        )
    return logs


def query_servers(url: str, data: DataDirectory) -> dict[str, str]:
    """Return the responses of the running platform and engine to requests about their state, by file name."""
    headers = {}
    with contextlib.suppress(OSError):
        headers["X-API-KEY"] = (data.path / "engine.key").read_text().strip()
    base = httpx.URL(url)
    engine = base.copy_with(port=(base.port or 80) + 1)  # the default of `sandyard up`
    requests = {
        **{f"platform-{name}.txt": (base.copy_with(path=f"/{name}"), {}) for name in ("health", "ready", "metrics")},
        **{
            f"engine-{name}.txt": (engine.copy_with(path=f"/{name}"), headers)
            for name in ("ready", "metrics", "status", "hosts", "disk")
        },
    }
    responses = {}
    timeout = httpx.Timeout(HTTP_SECONDS, read=COMMAND_SECONDS)  # measuring the disk takes longer
    with httpx.Client(timeout=timeout, trust_env=False) as client:
        for name, (address, request_headers) in requests.items():
            try:
                response = client.get(address, headers=request_headers)
            except httpx.HTTPError as error:
                responses[name] = f"{address} did not respond: {error}"
            else:
                responses[name] = f"{address} returned {response.status_code}\n{response.text}"
    return responses


def describe_disk(data: DataDirectory) -> dict[str, Any]:
    """Return the disk use of each part of the data directory, and the free space."""
    sizes = {}
    for folder in (data.path, data.platform, data.engine):
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path not in {data.platform, data.engine}:
                    sizes[str(path.relative_to(data.path))] = measure(path)
    free: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(data.path)
        free = {"totalBytes": usage.total, "freeBytes": usage.free}
    return {**free, "usedBytes": sizes}


async def describe_migrations(settings: PlatformSettings, data: DataDirectory) -> dict[str, Any]:
    """Return the schema revisions of the databases, and those that this version expects."""
    found: dict[str, Any] = {"platform": {"expected": get_newest_revision()}, "engine": {"expected": len(STEPS)}}
    try:
        async with _open_platform_database(settings) as database:
            found["platform"] |= {"database": "SQLite" if database.is_sqlite else "PostgreSQL"}
            found["platform"]["current"] = await get_current_revision(database)
            found["platform"]["drift"] = await find_drift(database)
    except _READ_ERRORS as error:
        found["platform"]["error"] = str(error)
    path = _get_engine_database(data)
    if path.exists():
        try:
            with _open_engine_database(path) as connection:
                found["engine"]["current"] = connection.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            found["engine"]["error"] = str(error)
    return found


async def describe_database(settings: PlatformSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the number of rows in each table of the platform, by status, and the most recent errors."""
    counts: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    try:
        async with _open_platform_database(settings) as database:
            for table in Base.metadata.sorted_tables:
                try:
                    async with database.reading() as session:
                        if "status" in table.c:
                            rows = await session.execute(select(table.c.status, func.count()).group_by(table.c.status))
                            counts[table.name] = {str(status): count for status, count in rows}
                        else:
                            counts[table.name] = await session.scalar(select(func.count()).select_from(table))
                        if "error" in table.c:
                            errors[table.name] = await _list_errors(session, table)
                except _READ_ERRORS as error:
                    counts[table.name] = str(error)
    except _READ_ERRORS as error:
        counts["database"] = str(error)
    return counts, {name: found for name, found in errors.items() if found}


async def _list_errors(session: AsyncSession, table: Table) -> list[dict[str, Any]]:
    names = [
        name
        for name in ("id", "error_code", "status", "created_at", "updated_at", "finished_at", "error")
        if name in table.c
    ]
    query = select(*(table.c[name] for name in names)).where(table.c.error.is_not(None))
    newest = (column.desc() for column in table.primary_key)  # ids are ordered by time
    rows = await session.execute(query.order_by(*newest).limit(ERRORS_PER_TABLE))
    return [{name: str(value)[:MAX_ERROR_CHARACTERS] for name, value in zip(names, row, strict=True)} for row in rows]


def count_engine_rows(data: DataDirectory) -> dict[str, Any]:
    """Return the number of rows in each table of the engine."""
    path = _get_engine_database(data)
    if not path.exists():
        return {}
    try:
        with _open_engine_database(path) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in sorted(names)}  # noqa: S608
            states = connection.execute("SELECT state, count(*) FROM sandboxes GROUP BY state")
            return {**counts, "sandboxes": dict(states.fetchall())}
    except sqlite3.Error as error:
        return {"database": str(error)}


async def list_known_secrets(settings: PlatformSettings, data: DataDirectory, environ: Mapping[str, str]) -> list[str]:
    """Return all secrets of this installation that can be read, so that they can be masked."""
    known = [value for name, value in environ.items() if is_secret_name(name)]
    for kind in SETTINGS.values():
        with contextlib.suppress(SandyardError):
            loaded = kind.load(environ)
            values = [getattr(loaded, field) for field in kind.model_fields]
            flat = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
            known += [value.reveal() for value in flat if isinstance(value, Secret)]
    for name in KEY_FILES:
        with contextlib.suppress(OSError):
            known.append((data.path / name).read_text(errors="replace"))
    vault_file = settings.data_dir / "secret.key"
    if vault_file.exists():
        known += await _list_platform_secrets(settings, Vault(vault_file))
    known += _list_engine_secrets(data)
    for url in (settings.database_url, environ.get("SANDYARD_ENGINE_DATABASE_URL")):
        with contextlib.suppress(ArgumentError):
            known.append(str(make_url(url or "").password or ""))
    return known


def _list_engine_secrets(data: DataDirectory) -> list[str]:
    """Return the secrets in the engine's database: those of clients, and the tokens of sandboxes and volumes."""
    path, vault_file = _get_engine_database(data), data.engine / "secrets.key"
    known: list[str] = []
    if not path.exists():
        return known
    with (
        contextlib.suppress(*_READ_ERRORS),
        _open_engine_database(path) as connection,
    ):
        known += [value for (value,) in connection.execute("SELECT value FROM meta WHERE key LIKE '%secret%'")]
        known += [token for (token,) in connection.execute("SELECT token FROM volumes")]
        for (spec,) in connection.execute("SELECT spec FROM sandboxes UNION ALL SELECT spec FROM snapshots"):
            known += _list_secret_fields(json.loads(spec))
        if vault_file.exists():
            vault = Vault(vault_file)
            for secret_id, version, sealed in connection.execute("SELECT id, version, sealed FROM secrets"):
                with contextlib.suppress(SandyardError):
                    known.append(vault.open(sealed, secret_id, str(version)).reveal())
    return known


def _list_secret_fields(document: Any) -> Iterator[str]:
    """Yield the strings in a JSON document whose key is the name of a secret."""
    if isinstance(document, dict):
        for name, value in document.items():
            if isinstance(value, str) and is_secret_name(name):
                yield value
            yield from _list_secret_fields(value)
    elif isinstance(document, list):
        for value in document:
            yield from _list_secret_fields(value)


async def _list_platform_secrets(settings: PlatformSettings, vault: Vault) -> list[str]:
    """Return the secrets in the platform's database."""
    known = []
    with contextlib.suppress(*_READ_ERRORS):
        async with _open_platform_database(settings) as database:
            for column in SEALED_COLUMNS:
                with contextlib.suppress(*_READ_ERRORS):
                    async with database.reading() as session:
                        rows = list(await session.scalars(select(column.model).where(column.value.is_not(None))))
                    for row in rows:
                        with contextlib.suppress(SandyardError):
                            known.append(vault.open(getattr(row, column.column), *column.get_location(row)).reveal())
    return known


def _get_engine_database(data: DataDirectory) -> Path:
    return data.engine / "engine.db"


@contextlib.contextmanager
def _open_engine_database(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        yield connection


@contextlib.asynccontextmanager
async def _open_platform_database(settings: PlatformSettings) -> AsyncIterator[Database]:
    if settings.database_url is None and not (settings.data_dir / "platform.db").exists():
        raise SandyardError(f"There is no database in {settings.data_dir}.")
    database = Database(settings.database)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def _run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """Return the output of a command, or the error if it could not be run."""
    try:
        done = subprocess.run(
            command,
            cwd=SAFE_FOLDER,
            env=make_python_environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return done.stdout.decode(errors="replace")
