"""Versions of templates that tests publish without building them, and their layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sandyard.engine.drivers.layer_names import TEMPLATE, LayerLocation, find_layers
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion


def publish(folder: TemplateFolder, name: str, digest: str) -> TemplateVersion:
    """Publish a version whose only content is the directory /etc."""
    with folder.open_build_directory(name) as work:
        (work / ROOTFS / "etc").mkdir(parents=True)
        return folder.publish(work, folder.make_version(name, digest, "a test", {}))


def get_layers(templates: Catalogue, name: str) -> tuple[str, ...]:
    """Return the names of a template's layers, the top one first."""
    found = templates.resolve(name)
    assert found is not None, name
    return found.layers


def find_layer_paths(folder: TemplateFolder, layers: Sequence[str]) -> list[Path]:
    """Return the directories of these layers."""
    return [Path(path) for path in find_layers(layers, {TEMPLATE: LayerLocation(folder.directory, ROOTFS)})]
