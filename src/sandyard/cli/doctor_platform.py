"""The platform section of `sandyard doctor`: configuration, engine, database and git."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from sandyard.cli.config import Login
from sandyard.cli.findings import Finding
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.kit.errors import SandyardError

if TYPE_CHECKING:
    from sandyard.platform.db.database import Database
    from sandyard.platform.settings import PlatformSettings

TIMEOUT_SECONDS = 2.0
CLOUD_DOMAIN = "e2b.app"


def check_platform(data_dir: Path | None = None) -> Iterator[Finding]:
    """Check the platform that `sandyard up` starts with this data directory. Errors are reported as findings, not raised."""
    from sandyard.platform.settings import PlatformSettings  # noqa: PLC0415 - slow to load

    try:
        settings = PlatformSettings.load(data_dir=_find_platform_dir(data_dir))
    except SandyardError as error:
        yield Finding("settings", False, error.message, vital=True)
        return
    hint = "" if data_dir is not None else ". To check another one, use --data-dir"
    yield Finding("data directory", True, f"checks {settings.data_dir}{hint}")
    with ThreadPoolExecutor(3) as pool:  # checks run in parallel, so that a timeout does not delay the others
        engine = pool.submit(lambda: list(_check_engine(settings)))
        database, git = pool.submit(check_database, settings), pool.submit(_check_git)
        yield from engine.result()
        yield database.result()
        yield git.result()


def _find_platform_dir(data_dir: Path | None) -> Path | None:
    """Return the platform's part of a data directory, by default of the configured one. None if there is neither."""
    if data_dir is None and (configured := os.environ.get("SANDYARD_DATA_DIR")):
        data_dir = Path(configured)
    if data_dir is None:
        return None
    data_dir = data_dir.absolute()
    return data_dir if (data_dir / "platform.db").exists() else DataDirectory(data_dir).platform


def _check_git() -> Finding:
    from sandyard.platform.domain.repositories.git_process import MINIMUM_VERSION, find_git_problem  # noqa: PLC0415 - slow to load

    reason = find_git_problem()
    return Finding(
        "git", reason is None, reason or f"installed, version {MINIMUM_VERSION[0]}.{MINIMUM_VERSION[1]} or newer"
    )


def _check_engine(settings: PlatformSettings) -> Iterator[Finding]:
    key, url = settings.e2b_api_key, settings.e2b_api_url
    if key is None:
        if url is None:
            yield Finding("engine", True, "E2B_API_KEY is not set: `sandyard up` starts its own engine")
        else:
            yield Finding("E2B_API_KEY", False, f"not set, but the engine at {url} needs one")
        return
    cloud = url is None
    api_url = url or f"https://api.{settings.e2b_domain or CLOUD_DOMAIN}"
    target = "E2B Cloud" if cloud else "an engine"
    yield Finding("E2B_API_KEY", True, f"set: `sandyard up --engine none` uses {target} at {api_url}")
    yield _check_engine_url(api_url, key.reveal())


def _check_engine_url(url: str, key: str) -> Finding:
    """Request a list of one sandbox, which needs a valid key and changes nothing."""
    import httpx  # noqa: PLC0415 - slow to load

    try:
        response = httpx.get(
            f"{url.rstrip('/')}/v2/sandboxes",
            params={"limit": 1},
            headers={"X-API-KEY": key},
            timeout=TIMEOUT_SECONDS,
            trust_env=not Login(url).is_local,
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = str(error).strip().rstrip(".").partition("] ")[2] or str(error).strip() or type(error).__name__
        return Finding("engine", False, f"could not connect to {url}: {reason}")
    if response.status_code in {401, 403}:
        return Finding("engine", False, f"{url} rejected the key in E2B_API_KEY")
    if response.status_code != 200:
        return Finding(
            "engine", False, f"{url} returned {response.status_code}: it is not an E2B API, or it is failing"
        )
    return Finding("engine", True, f"{url} responds and accepts the key")


def check_database(settings: PlatformSettings) -> Finding:
    """Check that the database responds, or that its file can be used. Creates nothing. A plain path needs no database library."""
    scheme, _, path = settings.database.partition(":///")
    is_plain_path = scheme == "sqlite" and path.startswith("/") and "?" not in path
    return (
        _check_database_file(Path(path), settings.database)
        if is_plain_path
        else _check_database_server(settings.database)
    )


def _check_database_server(url: str) -> Finding:
    from sandyard.platform.db.database import Database  # noqa: PLC0415 - slow to load

    name = "database"
    try:
        database = Database(url)
    except SandyardError as error:
        return Finding(name, False, error.message, vital=True)
    shown_url = database.url.render_as_string(hide_password=True).replace("+aiosqlite", "").replace("+asyncpg", "")
    if database.is_sqlite:
        return _check_database_file(Path(database.url.database or ""), shown_url)
    try:
        asyncio.run(_ping_database(database))
    except TimeoutError:
        return Finding(name, False, f"{shown_url} did not respond within {TIMEOUT_SECONDS:.0f} s")
    except SandyardError as error:
        cause = error.__cause__ and getattr(error.__cause__, "orig", error.__cause__)
        return Finding(name, False, f"{shown_url}: {' '.join(str(cause or error.message).split())}")
    except Exception as error:  # report any error of a database driver as a finding
        return Finding(name, False, f"{shown_url}: {' '.join(str(error).split()) or type(error).__name__}")
    return Finding(name, True, f"{shown_url} responds")


async def _ping_database(database: Database) -> None:
    await database.open()
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await database.check()
    finally:
        await database.close()


def _check_database_file(path: Path, shown_url: str) -> Finding:
    """Check a database file without creating anything."""
    if path.exists():
        ok = path.is_file() and os.access(path, os.R_OK | os.W_OK)
        return Finding("database", ok, f"{shown_url} exists" if ok else f"{path} is not readable and writable")
    nearest = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    ok = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return Finding(
        "database",
        ok,
        f"{shown_url} will be created on the first start" if ok else f"{path} cannot be created in {nearest}",
    )
