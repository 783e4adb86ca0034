"""Versions of templates that no engine needs.

The folder of templates is shared by all engines of a machine, so each engine registers its data directory in it. A version
is needed while it is the newest of its template, while it was the newest a short time ago, because an engine may
still be creating sandboxes from it, or while the records of a registered engine mention it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from sandyard.engine.templates import base
from sandyard.engine.templates.folder import BUILDING, TemplateFolder, TemplateVersion, remove_tree
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

TRUST = "trust"
_ENGINES, _SINCE = ".engines", ".engines-since"
_FORGET_S = 30 * 24 * 3600
"""How long an engine whose data directory is missing is still considered: its disk may just not be mounted."""
_COLUMNS = (("sandboxes", "spec"), ("sandboxes", "handle"), ("snapshots", "spec"), ("builds", "spec"), ("build_layers", "spec"))  # fmt: skip
"""The columns of an engine's database that name layers."""
_MIN_KEEP_S = 3600.0


def register_engine(folder: TemplateFolder, data_dir: Path) -> None:
    """Register an engine that uses this folder. Idempotent."""
    engines = folder.directory / _ENGINES
    engines.mkdir(exist_ok=True)
    since = folder.directory / _SINCE
    if not since.exists():
        since.touch()
    path = str(data_dir.absolute())
    (engines / hashlib.sha256(path.encode()).hexdigest()[:16]).write_text(path)


class UnusedVersions:
    """Finds and removes versions that no engine needs. `uses_layer` is this engine's, whose records may be newer in memory than
    in its database. All methods block."""

    def __init__(self, folder: TemplateFolder, keep_s: float, uses_layer: Callable[[str], bool]) -> None:
        self._folder = folder
        self._keep_s = max(keep_s, _MIN_KEEP_S)
        self._uses_layer = uses_layer

    def list_all(self) -> list[TemplateVersion]:
        """Return all versions of all templates."""
        names = [entry.name for entry in os.scandir(self._folder.directory) if entry.is_dir() and entry.name[0] != "."]
        return [version for name in sorted(names) for version in self._folder.list_versions(name)]

    def find(self) -> list[TemplateVersion]:
        """Return the versions that no engine needs, oldest first; none while that is unknown for one of the engines."""
        engines = self._folder.directory / _ENGINES
        try:
            if time.time() - (self._folder.directory / _SINCE).stat().st_mtime < self._keep_s:
                return []  # an engine of an earlier version may not have registered yet
        except FileNotFoundError:
            return []
        replaced = self._list_replaced()
        kept = set(self._list_layers_of([version for version in self.list_all() if version not in replaced]))
        candidates = [version for version in replaced if self._folder.name_layer(version) not in kept]
        try:
            databases = list(self._list_databases(engines))
            used = {version.path for version in candidates if self._is_used(version, databases)}
        except (OSError, sqlite3.Error) as error:
            log.warning("template_use_unknown", reason=str(error))
            return []
        unused = [version for version in candidates if version.path not in used]
        return sorted([*unused, *self._list_trust_of(unused, databases)], key=lambda version: version.created_at)

    def remove(self, versions: Sequence[TemplateVersion]) -> int:
        """Remove those of these versions that are still unused. Return how many were removed."""
        still_unused = {version.path for version in self.find()}
        removed = 0
        for version in versions:
            if version.path not in still_unused:
                continue
            trash = version.path.parent / f"{BUILDING}removed-{uuid.uuid4().hex}"  # a later build removes what remains
            with contextlib.suppress(FileNotFoundError):
                version.path.rename(trash)
                remove_tree(trash)
                removed += 1
                log.info("template_version_removed", template=version.name, version=version.version)
        return removed

    def _list_replaced(self) -> list[TemplateVersion]:
        """Return the versions that have not been the newest for `keep_s` seconds."""
        oldest = time.time() - self._keep_s
        replaced = []
        for name in {version.name for version in self.list_all()} - {TRUST}:
            newest_first = self._folder.list_versions(name)
            replaced += [version for newer, version in itertools.pairwise(newest_first) if newer.created_at < oldest]
        return replaced

    def _list_layers_of(self, versions: Collection[TemplateVersion]) -> Iterator[str]:
        """Yield the names of the layers that these versions consist of, which may include one of `base`."""
        for version in versions:
            yield self._folder.name_layer(version)
            if (label := version.details.get("base")) is not None:
                yield from (
                    self._folder.name_layer(base_version)
                    for base_version in self._folder.list_versions(base.NAME)
                    if base_version.version == label
                )

    def _list_trust_of(self, versions: Collection[TemplateVersion], databases: Sequence[Path]) -> list[TemplateVersion]:
        """Return the layers with certificates that were made for these versions and are unused."""
        titles = {f"for {version.name} {version.version}" for version in versions}
        return [
            trust
            for trust in self._folder.list_versions(TRUST)
            if trust.description in titles and not self._is_used(trust, databases)
        ]

    def _list_databases(self, engines: Path) -> Iterator[Path]:
        """Yield the databases of all registered engines. Raises FileNotFoundError if one is not there."""
        for entry in engines.iterdir():
            data_dir = Path(entry.read_text())
            if data_dir.is_dir():
                (data_dir / "engine.db").stat()
                yield data_dir / "engine.db"
            elif time.time() - entry.stat().st_mtime > _FORGET_S:
                entry.unlink()
            else:
                raise FileNotFoundError(f"the data directory {data_dir} of another engine is not there")

    def _is_used(self, version: TemplateVersion, databases: Sequence[Path]) -> bool:
        # records of earlier versions contain the path
        layers = (self._folder.name_layer(version), str(version.rootfs))
        if any(self._uses_layer(layer) for layer in layers):
            return True
        return any(_mentions(database, f'"{layer}"') for database in databases for layer in layers)


def _mentions(database: Path, text: str) -> bool:
    """Return whether the records in an engine's database contain a text."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        return any(
            connection.execute(f"SELECT 1 FROM {table} WHERE instr({column}, ?) LIMIT 1", (text,)).fetchone()  # noqa: S608
            for table, column in _COLUMNS
        )
