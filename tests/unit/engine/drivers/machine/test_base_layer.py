"""The layer of the driver is below what sandboxes have written, wherever that is, and above the template."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.engine.drivers.machine import base_layer

SNAPSHOT, FETCHED = "/data/store/snapshots/s1/upper", "/data/layers/snapshots/layers/aa.1/fs"
TEMPLATE, FETCHED_TEMPLATE = "/templates/base/1/rootfs", "/data/layers/templates/layers/bb.1/fs"


@pytest.mark.parametrize(
    ("layers", "above"),
    [
        ([TEMPLATE], 0),
        ([SNAPSHOT, TEMPLATE], 1),
        ([SNAPSHOT, FETCHED, FETCHED_TEMPLATE], 2),
        ([FETCHED, TEMPLATE, FETCHED_TEMPLATE], 1),
        ([SNAPSHOT, FETCHED], 2),
        (["/data/store-other/x", TEMPLATE], 0),
    ],
)
def test_the_place_of_the_base_layer(layers: list[str], above: int) -> None:
    assert base_layer.find_template(Path("/data/store"), layers) == above
