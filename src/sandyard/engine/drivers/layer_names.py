"""Names of layers, such as `tpl:base/3f2a` or `snap:s1`: the same on every host and wherever the data directory is.

Records contain names, which the engine only compares. A driver finds the directory of a layer with the folders of its
host. Records of earlier versions contain absolute paths instead of names; these are used as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.kit.errors import NotFoundError

TEMPLATE, TRUST, IMAGE, SNAPSHOT, SHARED = "tpl", "trust", "img", "snap", "shared"
"""Kinds of layers: of templates, of the engine's own authority, of images, of snapshots, and what stopped sandboxes
share with their copies."""
FETCHED_SNAPSHOT, FETCHED_TEMPLATE = "fetched-snap", "fetched-tpl"
"""Kinds of layers that were fetched from a layer store: what sandboxes have written, and what is below that."""
REMOTE = "remote"
"""The kind of layers that were copied from another host: `remote:snap/s1` is the copy of `snap:s1`. Only the host that has
the copy uses this name."""


@dataclass(frozen=True, slots=True)
class LayerLocation:
    """The location of all layers of one kind: the layer `KIND:a/b` is the directory `path/a/b/leaf`."""

    path: Path
    leaf: str


def make_layer_name(kind: str, *parts: str) -> str:
    return f"{kind}:{'/'.join(parts)}"


def make_copy_name(layer: str) -> str:
    """Return the name of the copy of a layer of another host."""
    kind, _, name = layer.partition(":")
    return make_layer_name(REMOTE, kind, name)


def get_original_name(layer: str) -> str:
    """Return the name of a layer that may be a copy of another host's."""
    kind, _, name = layer.partition(":")
    return ":".join(name.split("/", 1)) if kind == REMOTE else layer


def get_layer_kind(layer: str) -> str:
    """Return the kind of a layer that has a name."""
    return layer.partition(":")[0]


def find_layers(layers: Sequence[str], locations: Mapping[str, LayerLocation]) -> tuple[str, ...]:
    """Return the directories of these layers, whether they exist or not. Raises NotFoundError if a layer is of a kind
    that is unknown on this host."""
    return tuple(layer if layer.startswith("/") else _find_layer(layer, locations) for layer in layers)


def _find_layer(layer: str, locations: Mapping[str, LayerLocation]) -> str:
    kind, _, name = layer.partition(":")
    parts = name.split("/")
    if kind not in locations or not all(part and not part.startswith(".") for part in parts):
        raise NotFoundError(f"The layer {layer} does not exist.")
    location = locations[kind]
    return str(location.path.joinpath(*parts, location.leaf))
