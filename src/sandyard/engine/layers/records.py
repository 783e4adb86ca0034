"""The engine's records of published layers and snapshots, in its database."""

from __future__ import annotations

import contextlib
import enum
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from sandyard.engine.drivers.layer_names import TEMPLATE, TRUST, get_layer_kind, make_layer_name
from sandyard.engine.layers.manifest import PackedLayer
from sandyard.engine.store.database import Database
from sandyard.kit.errors import NotFoundError

SIDECAR = "layer.json"
"""The file next to the `rootfs` of a template with its digests: all engines of the machine share templates."""


class LayerRecords:
    """The digests of layers on this machine. `templates` is the folder of templates, which are never changed; `find_path`
    returns where a layer is on this machine."""

    def __init__(self, database: Database, templates: Path, find_path: Callable[[str], Path]) -> None:
        self._database = database
        self._templates = templates.absolute()
        self._find_path = find_path

    def get(self, layer: str) -> PackedLayer | None:
        """Return the digests of a layer that was packed or fetched before."""
        sidecar = self._find_sidecar(layer)
        if sidecar is not None and (packed := _read_sidecar(sidecar)) is not None:
            return packed
        rows = self._database.query("SELECT spec FROM layer_digests WHERE layer = ?", (layer,))
        return PackedLayer.model_validate_json(rows[0][0]) if rows else None

    def put(self, layer: str, packed: PackedLayer) -> None:
        spec = PackedLayer(**packed.model_dump(include=set(PackedLayer.model_fields))).model_dump_json()
        if (sidecar := self._find_sidecar(layer)) is not None:
            partial = sidecar.with_name(f".{SIDECAR}-{os.getpid()}")
            with contextlib.suppress(OSError):  # the folder may belong to another user
                partial.write_text(spec + "\n")
                partial.rename(sidecar)
                return
        self._database.execute(
            "INSERT INTO layer_digests VALUES (?, ?, ?) ON CONFLICT (layer) DO UPDATE SET digest = excluded.digest, "
            "spec = excluded.spec",
            (layer, packed.digest, spec),
        )

    def list_permanent(self, digest: str) -> Iterator[str]:
        """Yield the layers with this digest that are never removed, so that any snapshot may use them: those of templates
        and of the engine's own authority. They may no longer exist."""
        for (layer,) in self._database.query("SELECT layer FROM layer_digests WHERE digest = ?", (digest,)):
            if get_layer_kind(layer) in (TEMPLATE, TRUST):
                yield str(layer)
        for sidecar in self._templates.glob(f"*/*/{SIDECAR}"):
            if (packed := _read_sidecar(sidecar)) is not None and packed.digest == digest:
                yield make_layer_name(TEMPLATE, sidecar.parent.parent.name, sidecar.parent.name)

    def forget_missing(self) -> None:
        """Remove the rows of layers that no longer exist."""
        for (layer,) in self._database.query("SELECT layer FROM layer_digests"):
            if not self._exists(layer):
                self._database.execute("DELETE FROM layer_digests WHERE layer = ?", (layer,))

    def _exists(self, layer: str) -> bool:
        try:
            return self._find_path(layer).exists()
        except NotFoundError:
            return False

    def _find_sidecar(self, layer: str) -> Path | None:
        path = self._find_path(layer)
        return path.parent / SIDECAR if path.is_relative_to(self._templates) else None


def _read_sidecar(path: Path) -> PackedLayer | None:
    try:
        return PackedLayer.model_validate(json.loads(path.read_text()))
    except (OSError, ValueError, ValidationError):
        return None


class State(enum.StrEnum):
    """The state of a snapshot in a layer store. A snapshot of which nothing was published has none."""

    PUBLISHING = "publishing"  # its manifest may already be there
    PUBLISHED = "published"
    PULLED = "pulled"  # by this engine, from the store
    MISSING = "missing"  # pulled, and the store no longer has it

    @property
    def is_durable(self) -> bool:
        return self in (State.PUBLISHED, State.PULLED)


@dataclass(frozen=True, slots=True)
class Publication:
    state: State
    used_at: float  # when it was pulled or last used


class PublicationRecords:
    """The publications of this engine's snapshots, for each store that it has used, by the store's identity."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, dict[str, Publication]] = {}
        for store, snapshot, state, used_at in database.query(
            "SELECT store, snapshot_id, state, used_at FROM publications"
        ):
            self._known.setdefault(store, {})[snapshot] = Publication(State(state), used_at)

    def get(self, store: str | None, snapshot_id: str) -> Publication | None:
        return self._known.get(store or "", {}).get(snapshot_id)

    def list(self, store: str) -> dict[str, Publication]:
        return dict(self._known.get(store, {}))

    def set(self, store: str, snapshot_id: str, state: State, used_at: float) -> None:
        self._database.execute(
            "INSERT INTO publications VALUES (?, ?, ?, ?) ON CONFLICT (store, snapshot_id) DO UPDATE SET "
            "state = excluded.state, used_at = excluded.used_at",
            (store, snapshot_id, state.value, used_at),
        )
        self._known.setdefault(store, {})[snapshot_id] = Publication(state, used_at)

    def delete(self, store: str, snapshot_id: str) -> None:
        self._database.execute("DELETE FROM publications WHERE store = ? AND snapshot_id = ?", (store, snapshot_id))
        self._known.get(store, {}).pop(snapshot_id, None)
