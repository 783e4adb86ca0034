"""Layers of earlier builds, found by a key.

A key is a hash that covers the base and every step up to that point, including files, so a build can start from the longest cached
prefix. The least recently used layers are removed first; the files of a layer that a template, a sandbox, a snapshot or
a build still needs are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from sandyard.engine.builds.model import Layer, State, Step
from sandyard.engine.builds.repository import BuildRepository
from sandyard.engine.contract import Layers
from sandyard.kit.clock import Clock

KEY_LENGTH = 64


def compute_base_key(layers: Layers, state: State, identity: str = "") -> str:
    """Return the key of a base. Its layers never change, so their names identify their contents."""
    return _hash("base", identity, list(layers), dict(state.env), state.user, state.workdir)


def compute_step_key(before: str, step: Step) -> str:
    return _hash(before, step.kind.value, list(step.args), step.files)


def compute_start_key(before: str, start: str | None, ready: str | None) -> str:
    """Return the key of a start command that has been verified to become ready."""
    return _hash(before, "start", start, ready)


class LayerCache:
    """At most `limit` cached layers, in memory and in the database."""

    def __init__(self, repository: BuildRepository, clock: Clock, limit: int) -> None:
        self._repository = repository
        self._clock = clock
        self._limit = limit
        self._layers: dict[str, Layer] = {}  # least recently used first

    def load(self) -> None:
        self._layers = {layer.key: layer for layer, _ in self._repository.list_layers()}

    def find(self, key: str) -> Layer | None:
        return self._layers.get(key)

    def put(self, layer: Layer) -> None:
        self._repository.put_layer(layer, self._clock.now())
        self._layers.pop(layer.key, None)
        self._layers[layer.key] = layer

    def mark_used(self, keys: Iterable[str]) -> None:
        """Mark these layers as just used."""
        cached = [key for key in keys if key in self._layers]
        with self._repository.database.transaction():
            self._repository.mark_layers_used(cached, self._clock.now())
        for key in cached:
            self._layers[key] = self._layers.pop(key)

    def drop(self, key: str) -> None:
        if self._layers.pop(key, None) is not None:
            self._repository.delete_layer(key)

    def shrink(self, limit: int | None = None) -> int:
        """Remove the least recently used layers above `limit`, or the cache's own limit. Return how many were removed."""
        limit = self._limit if limit is None else limit
        excess = list(self._layers)[: max(0, len(self._layers) - limit)]
        for key in excess:
            self.drop(key)
        return len(excess)

    def list_snapshots(self) -> set[str]:
        """Return the snapshots that cached layers need."""
        return {snapshot for layer in self._layers.values() for snapshot in layer.snapshots}

    def uses_layer(self, name: str) -> bool:
        return any(name in layer.layers for layer in self._layers.values())


def _hash(*parts: str | list[str] | Mapping[str, str] | None) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:KEY_LENGTH]
