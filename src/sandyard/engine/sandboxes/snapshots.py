"""Snapshots: saved file systems with an id or a name that can be used as templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sandyard.engine.contract import Isolation, Limits
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.model import Defaults, Page, Sandbox, Snapshot, SnapshotQuery, Template
from sandyard.engine.sandboxes.registry import decode_cursor, make_page
from sandyard.engine.sandboxes.remover import Spawn
from sandyard.engine.sandboxes.repository import decode_start, encode_defaults, encode_limits, encode_start
from sandyard.engine.store.database import Database, Row
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

DEFAULT_TAG = "default"
_NAME_PATTERN = re.compile(r"(?:[a-z0-9][a-z0-9_-]{0,62}/)?[a-z0-9][a-z0-9_.-]{0,127}")
_ID_PATTERN = re.compile(r"s[a-z0-9]{19}")
_TAG_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,127}")


def make_snapshot_id() -> str:
    return make_random_id("s", 19)


def is_snapshot_id(text: str) -> bool:
    """Return whether an engine may have made this id. Names that people choose are hardly ever like it."""
    return _ID_PATTERN.fullmatch(text) is not None


def split_name(text: str) -> tuple[str, str | None]:
    """Split a client's `name[:tag]` into name and tag (or None). Raises InvalidInputError if it is not a valid name."""
    name, colon, tag = text.strip().lower().partition(":")
    if not _NAME_PATTERN.fullmatch(name) or (colon and not _TAG_PATTERN.fullmatch(tag)):
        raise InvalidInputError(
            f"Invalid name: {text[:200]!r}. Use lowercase letters, digits, '-', '_' and '.', optionally followed by "
            "a ':tag' with the same characters."
        )
    return name, tag or None


class Snapshots:
    """All snapshots, in memory and in the database. Clients no longer see a deleted snapshot; the driver removes its
    files when no sandbox and no other snapshot needs them. `list_sandboxes` returns the existing sandboxes,
    `list_pooled` the snapshots that pooled sandboxes are based on."""

    def __init__(
        self,
        database: Database,
        calls: DriverCalls,
        spawn: Spawn,
        list_sandboxes: Callable[[], Iterable[Sandbox]],
        list_pooled: Callable[[], Iterable[str]],
    ) -> None:
        self._database = database
        self._calls = calls
        self._spawn = spawn
        self._list_sandboxes = list_sandboxes
        self._list_pooled = list_pooled
        self._live: dict[str, Snapshot] = {}
        self._deleted: dict[str, Snapshot] = {}
        self._removing: set[str] = set()
        self._unrecorded: set[str] = set()
        self.keepers: list[Callable[[], Iterable[str]]] = []  # each returns the hidden snapshots it needs
        self.on_change: Callable[[], None] = lambda: None  # called when clients have a snapshot more or less
        self.hold_counts: dict[str, int] = {}  # ids of snapshots from which a sandbox is being created

    def load(self) -> None:
        for row in self._database.query(
            "SELECT seq, id, name, tag, created_at, spec, deleted FROM snapshots ORDER BY seq"
        ):
            snapshot = _decode_row(row)
            (self._deleted if row[6] else self._live)[snapshot.id] = snapshot

    def list_needed(self) -> list[str]:
        """Return the ids whose files must be kept. Rows of deleted snapshots that nothing needs are removed; the driver
        removes their files."""
        for snapshot in self._list_unused():
            self._delete_row(snapshot.id)
        return [*self._live, *self._deleted]

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
                    json.dumps(_encode_spec(snapshot)),
                ),
            )
        if before is not None:
            self._deleted[before.id] = self._live.pop(before.id)
        stored = replace(snapshot, seq=seq)
        (self._deleted if hidden else self._live)[snapshot.id] = stored
        log.info("snapshot_created", snapshot=snapshot.id, sandbox=snapshot.sandbox_id, name=snapshot.name)
        self.on_change()
        self.remove_unused()
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
            self._deleted[snapshot.id] = self._live.pop(snapshot.id)
            log.info("snapshot_deleted", snapshot=snapshot.id)
        self.on_change()
        self.remove_unused()
        return found

    def resolve(self, reference: str) -> Template | None:
        """Return a snapshot as a template, or None; a name without a tag means the tag `default`, otherwise the
        newest."""
        found = self._find_all(reference)
        if not found:
            return None
        snapshot = next((candidate for candidate in found if candidate.tag == DEFAULT_TAG), found[-1])
        limits = snapshot.limits
        return Template(
            id=snapshot.id,
            layers=snapshot.layers,
            aliases=() if snapshot.name is None else (snapshot.name,),
            env=snapshot.env,
            defaults=snapshot.defaults,
            start=snapshot.start,
            snapshots=(*snapshot.snapshots, snapshot.id),
            can_be_pooled=False,
            cpu_count=limits.cpu_count,
            memory_mb=limits.memory_mb,
            disk_mb=limits.disk_mb,
            isolation=snapshot.isolation,
            containers=snapshot.containers,
        )

    def find(self, snapshot_id: str) -> Snapshot | None:
        """Return a snapshot that clients see, or None."""
        return self._live.get(snapshot_id)

    def find_stored(self, snapshot_id: str) -> Snapshot | None:
        """Return a snapshot whose files exist, also one that clients do not see, or None."""
        return self._live.get(snapshot_id) or self._deleted.get(snapshot_id)

    def list_all(self) -> list[Snapshot]:
        """Return the snapshots that clients see, oldest first."""
        return list(self._live.values())

    def is_used(self, snapshot_id: str) -> bool:
        """Return whether a sandbox or another snapshot needs the files of this one."""
        needed = {used for sandbox in self._list_sandboxes() for used in sandbox.snapshots}
        needed |= {used for snapshot in self._live.values() for used in snapshot.snapshots}
        needed.update(self._list_pooled(), *(keeper() for keeper in self.keepers), self.hold_counts)
        return snapshot_id in needed

    def get_page(self, query: SnapshotQuery) -> Page[Snapshot]:
        after = None if query.cursor is None else decode_cursor(query.cursor)
        name, _, tag = (query.name or "").strip().lower().partition(":")
        found = []
        for snapshot in reversed(self._live.values()):
            if (
                (after is None or snapshot.seq < after)
                and (query.sandbox_id is None or snapshot.sandbox_id == query.sandbox_id)
                and (query.name is None or (snapshot.name == name and tag in {"", snapshot.tag}))
            ):
                found.append(snapshot)
        return make_page(found[: query.limit + 1], query.limit)

    def remove_unused(self) -> None:
        """Let the driver remove the files of deleted snapshots that are no longer needed, in the background."""
        for snapshot_id in [*(snapshot.id for snapshot in self._list_unused()), *self._unrecorded]:
            if snapshot_id not in self._removing:
                self._removing.add(snapshot_id)
                self._spawn(self._remove_files(snapshot_id))

    @contextmanager
    def hold(self, snapshots: tuple[str, ...]) -> Iterator[None]:
        """Keep the files of these snapshots while the context lasts."""
        for snapshot_id in snapshots:
            self.hold_counts[snapshot_id] = self.hold_counts.get(snapshot_id, 0) + 1
        try:
            yield
        finally:
            for snapshot_id in snapshots:
                self.hold_counts[snapshot_id] -= 1
                if not self.hold_counts[snapshot_id]:
                    del self.hold_counts[snapshot_id]
            if snapshots:
                self.remove_unused()

    def uses_layer(self, layer: str) -> bool:
        return any(layer in snapshot.layers for kept in (self._live, self._deleted) for snapshot in kept.values())

    def discard(self, snapshot_id: str) -> None:
        """Remove the files of a snapshot that has no record."""
        self._unrecorded.add(snapshot_id)
        self.remove_unused()

    async def _remove_files(self, snapshot_id: str) -> None:
        try:
            await self._calls.run("delete_snapshot", snapshot_id, self._calls.driver.delete_snapshot(snapshot_id))
        except SandyardError as error:  # retried with the next `remove_unused`, and removed at the next start
            log.warning("snapshot_removal_failed", snapshot=snapshot_id, reason=error.message)
        else:
            self._unrecorded.discard(snapshot_id)
            self._delete_row(snapshot_id)
            log.info("snapshot_removed", snapshot=snapshot_id)
        finally:
            self._removing.discard(snapshot_id)

    def _delete_row(self, snapshot_id: str) -> None:
        self._deleted.pop(snapshot_id, None)
        self._database.execute("DELETE FROM snapshots WHERE id = ?", (snapshot_id,))

    def _list_unused(self) -> list[Snapshot]:
        if not self._deleted:
            return []
        needed = {used for sandbox in self._list_sandboxes() for used in sandbox.snapshots}
        needed |= {used for snapshot in self._live.values() for used in snapshot.snapshots}
        needed.update(self._list_pooled(), *(keeper() for keeper in self.keepers))
        return [
            snapshot
            for snapshot in self._deleted.values()
            if snapshot.id not in needed and not self.hold_counts.get(snapshot.id)
        ]

    def _find_named(self, name: str, tag: str) -> Snapshot | None:
        return next(
            (candidate for candidate in self._live.values() if candidate.name == name and candidate.tag == tag), None
        )

    def _find_all(self, reference: str) -> list[Snapshot]:
        name, _, tag = reference.strip().lower().partition(":")
        by_id = self._live.get(name)
        if by_id is not None:
            return [by_id] if tag in {"", by_id.tag} else []
        return [candidate for candidate in self._live.values() if candidate.name == name and tag in {"", candidate.tag}]


def _encode_spec(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "sandbox_id": snapshot.sandbox_id,
        "template_id": snapshot.template_id,
        "layers": snapshot.layers,
        "limits": encode_limits(snapshot.limits),
        "env": dict(snapshot.env),
        "defaults": encode_defaults(snapshot.defaults),
        "start": encode_start(snapshot.start),
        "isolation": snapshot.isolation and snapshot.isolation.value,
        "containers": snapshot.containers,
        "snapshots": snapshot.snapshots,
    }


def _decode_row(row: Row) -> Snapshot:
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
        start=decode_start(spec),
        isolation=Isolation(spec["isolation"]) if spec.get("isolation") else None,
        containers=spec.get("containers"),
        snapshots=tuple(spec["snapshots"]),
        seq=seq,
    )
