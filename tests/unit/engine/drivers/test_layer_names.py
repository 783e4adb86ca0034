from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.engine.drivers.layer_names import SNAPSHOT, TEMPLATE, LayerLocation, find_layers, make_layer_name
from sandyard.kit.errors import NotFoundError

LOCATIONS = {
    TEMPLATE: LayerLocation(Path("/templates"), "rootfs"),
    SNAPSHOT: LayerLocation(Path("/data/snapshots"), "upper"),
}


def test_layers_are_found_by_name() -> None:
    names = (make_layer_name(SNAPSHOT, "s1"), make_layer_name(TEMPLATE, "base", "3f2a.17"))
    assert names == ("snap:s1", "tpl:base/3f2a.17")
    assert find_layers(names, LOCATIONS) == ("/data/snapshots/s1/upper", "/templates/base/3f2a.17/rootfs")


def test_paths_in_records_of_earlier_versions_are_used_as_they_are() -> None:
    paths = ("/data/store/snapshots/s1/upper", "/elsewhere/base/3f2a/rootfs")
    assert find_layers(paths, LOCATIONS) == paths


@pytest.mark.parametrize(
    "name", ["img:layers/a", "snap:", "snap:..", "snap:a/../b", "snap:.hidden", "snap:/etc", "etc"]
)
def test_names_that_lead_nowhere_are_rejected(name: str) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        find_layers((name,), LOCATIONS)
