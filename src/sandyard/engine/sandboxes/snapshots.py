"""Snapshots: saved file systems with an id or a name that can be used as templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sandyard.engine.contract import Limits
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.model import Defaults, Page, Sandbox, Snapshot, SnapshotQuery, Template
from sandyard.engine.sandboxes.registry import page_of, read_cursor
from sandyard.engine.sandboxes.remover import Spawn
from sandyard.engine.sandboxes.repository import defaults_dict, limits_dict, read_start, start_dict
from sandyard.engine.store.database import Database, Row
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import random_id
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

DEFAULT_TAG = "default"
_NAME = re.compile(r"(?:[a-z0-9][a-z0-9_-]{0,62}/)?[a-z0-9][a-z0-9_.-]{0,127}")
_TAG = re.compile(r"[a-z0-9][a-z0-9_.-]{0,127}")


def new_snapshot_id() -> str:
    return random_id("s", 19)


def split_name(text: str) -> tuple[str, str | None]:
    """Split a client's `name[:tag]` into name and tag (or None). Raises InvalidInputError if it is not a valid name."""
    name, colon, tag = text.strip().lower().partition(":")
    if not _NAME.fullmatch(name) or (colon and not _TAG.fullmatch(tag)):
        raise InvalidInputError(
            f"Invalid name: {text[:200]!r}. Use lowercase letters, digits, '-', '_' and '.', optionally followed by "
            "a ':tag' with the same characters."
        )
    return name, tag or None


class Snapshots:
    """All snapshots, in memory and in the database. Clients no longer see a deleted snapshot; the driver removes its
    files when no sandbox and no other snapshot needs them. `users` returns the existing sandboxes, `pooled` the
    snapshots that pooled sandboxes are based on."""

    def __init__(
        self,
        database: Database,
        calls: DriverCalls,
        spawn: Spawn,
        users: Callable[[], Iterable[Sandbox]],
        pooled: Callable[[], Iterable[str]],
    ) -> None:
        self._database = database
        self._calls = calls
        self._spawn = spawn
        self._users = users
        self._pooled = pooled
        self._live: dict[str, Snapshot] = {}
        self._doomed: dict[str, Snapshot] = {}
        self._removing: set[str] = set()
        self._unrecorded: set[str] = set()
        self.keepers: list[Callable[[], Iterable[str]]] = []  # each returns the hidden snapshots it needs
        self.held: dict[str, int] = {}  # ids of snapshots from which a sandbox is being created

    def load(self) -> None:
        for row in self._database.query(
            "SELECT seq, id, name, tag, created_at, spec, deleted FROM snapshots ORDER BY seq"
        ):
            snapshot = _record(row)
            (self._doomed if row[6] else self._live)[snapshot.id] = snapshot

    def list_needed(self) -> list[str]:
        """Return the ids whose files must be kept. Rows of deleted snapshots that nothing needs are removed; the driver
        removes their files."""
        for snapshot in self._list_unused():
            self._forget(snapshot.id)
        return [*self._live, *self._doomed]

    def add(self, snapshot: Snapshot, *, hidden: bool = False) -> Snapshot:
        """Store a snapshot. An existing one with the same name and tag is replaced, that is, deleted. `hidden`
        snapshots belong to no client: they are marked as deleted from the start."""
        with self._database.transaction():
            before = None if snapshot.name is None or hidden else self._find_named(snapshot.name, snapshot.tag)
            if before is not None:
                self._database.execute("UPDATE snapshots SET deleted = 1 WHERE id = ?", (before.id,))
            seq = self._database.insert(
                "INSERT INTO snapshots (id, name, tag, created_at, deleted, spec) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    snapshot.id,
                    snapshot.name,
                    snapshot.tag,
                    snapshot.created_at,
                    int(hidden),
                    json.dumps(_spec(snapshot)),
                ),
            )
        if before is not None:
            self._doomed[before.id] = self._live.pop(before.id)
        stored = replace(snapshot, seq=seq)
        (self._doomed if hidden else self._live)[snapshot.id] = stored
        log.info("snapshot_created", snapshot=snapshot.id, sandbox=snapshot.sandbox_id, name=snapshot.name)
        self.collect()
        return stored

    def delete(self, reference: str) -> list[Snapshot]:
        """Delete by id, `id:tag`, `name:tag`, or a name with all its tags. Raises NotFoundError."""
        found = self._find_all(reference)
        if not found:
            raise NotFoundError(f"Snapshot {reference!r} not found")
        with self._database.transaction():
            for snapshot in found:
                self._database.execute("UPDATE snapshots SET deleted = 1 WHERE id = ?", (snapshot.id,))
        for snapshot in found:
            self._doomed[snapshot.id] = self._live.pop(snapshot.id)
            log.info("snapshot_deleted", snapshot=snapshot.id)
        self.collect()
        return found

    def resolve(self, reference: str) -> Template | None:
        """Return a snapshot as a template, or None; a name without a tag means the tag `default`, otherwise the newest."""
        found = self._find_all(reference)
        if not found:
            return None
        snapshot = next((one for one in found if one.tag == DEFAULT_TAG), found[-1])
        limits = snapshot.limits
        return Template(
            id=snapshot.id,
            layers=snapshot.layers,
            aliases=() if snapshot.name is None else (snapshot.name,),
            env=snapshot.env,
            defaults=snapshot.defaults,
            start=snapshot.start,
            snapshots=(*snapshot.snapshots, snapshot.id),
            lasting=False,
            cpu_count=limits.cpu_count,
            memory_mb=limits.memory_mb,
            disk_mb=limits.disk_mb,
        )

    def page(self, query: SnapshotQuery) -> Page[Snapshot]:
        after = None if query.cursor is None else read_cursor(query.cursor)
        name, _, tag = (query.name or "").strip().lower().partition(":")
        found = []
        for snapshot in reversed(self._live.values()):
            if (
                (after is None or snapshot.seq < after)
                and (query.sandbox_id is None or snapshot.sandbox_id == query.sandbox_id)
                and (query.name is None or (snapshot.name == name and tag in {"", snapshot.tag}))
            ):
                found.append(snapshot)
        return page_of(found[: query.limit + 1], query.limit)

    def collect(self) -> None:
        """Let the driver remove the files of deleted snapshots that are no longer needed, in the background."""
        for snapshot_id in [*(snapshot.id for snapshot in self._list_unused()), *self._unrecorded]:
            if snapshot_id not in self._removing:
                self._removing.add(snapshot_id)
                self._spawn(self._remove(snapshot_id))

    @contextmanager
    def hold(self, snapshots: tuple[str, ...]) -> Iterator[None]:
        """Keep the files of these snapshots while the context lasts."""
        for snapshot_id in snapshots:
            self.held[snapshot_id] = self.held.get(snapshot_id, 0) + 1
        try:
            yield
        finally:
            for snapshot_id in snapshots:
                self.held[snapshot_id] -= 1
                if not self.held[snapshot_id]:
                    del self.held[snapshot_id]
            if snapshots:
                self.collect()

    def uses_layer(self, layer: str) -> bool:
        return any(layer in snapshot.layers for kept in (self._live, self._doomed) for snapshot in kept.values())

    def discard(self, snapshot_id: str) -> None:
        """Remove the files of a snapshot that has no record."""
        self._unrecorded.add(snapshot_id)
        self.collect()

    async def _remove(self, snapshot_id: str) -> None:
        try:
            await self._calls.run("delete_snapshot", snapshot_id, self._calls.driver.delete_snapshot(snapshot_id))
        except SandyardError as error:  # retried with the next `collect`, and removed at the next start
            log.warning("snapshot_removal_failed", snapshot=snapshot_id, reason=error.message)
        else:
            self._unrecorded.discard(snapshot_id)
            self._forget(snapshot_id)
            log.info("snapshot_removed", snapshot=snapshot_id)
        finally:
            self._removing.discard(snapshot_id)

    def _forget(self, snapshot_id: str) -> None:
        self._doomed.pop(snapshot_id, None)
        self._database.execute("DELETE FROM snapshots WHERE id = ?", (snapshot_id,))

    def _list_unused(self) -> list[Snapshot]:
        if not self._doomed:
            return []
        needed = {used for sandbox in self._users() for used in sandbox.snapshots}
        needed |= {used for snapshot in self._live.values() for used in snapshot.snapshots}
        needed.update(self._pooled(), *(keeper() for keeper in self.keepers))
        return [
            snapshot
            for snapshot in self._doomed.values()
            if snapshot.id not in needed and not self.held.get(snapshot.id)
        ]

    def _find_named(self, name: str, tag: str) -> Snapshot | None:
        return next((one for one in self._live.values() if one.name == name and one.tag == tag), None)

    def _find_all(self, reference: str) -> list[Snapshot]:
        name, _, tag = reference.strip().lower().partition(":")
        by_id = self._live.get(name)
        if by_id is not None:
            return [by_id] if tag in {"", by_id.tag} else []
        return [one for one in self._live.values() if one.name == name and tag in {"", one.tag}]


def _spec(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "sandbox_id": snapshot.sandbox_id,
        "template_id": snapshot.template_id,
        "layers": snapshot.layers,
        "limits": limits_dict(snapshot.limits),
        "env": dict(snapshot.env),
        "defaults": defaults_dict(snapshot.defaults),
        "start": start_dict(snapshot.start),
        "snapshots": snapshot.snapshots,
    }


def _record(row: Row) -> Snapshot:
    seq, snapshot_id, name, tag, created_at, text, _ = row
    spec = json.loads(text)
    return Snapshot(
        id=snapshot_id,
        sandbox_id=spec["sandbox_id"],
        template_id=spec["template_id"],
        layers=tuple(spec["layers"]),
        limits=Limits(**spec["limits"]),
        created_at=created_at,
        name=name,
        tag=tag,
        env=spec["env"],
        defaults=Defaults(**spec["defaults"]),
        start=read_start(spec),
        snapshots=tuple(spec["snapshots"]),
        seq=seq,
    )
