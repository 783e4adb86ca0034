"""Test the disk report of a driver: every byte is counted once, including removed data that is still needed."""

from __future__ import annotations

import pytest

from sandyard.engine.contract import DiskKind
from tests.conformance.harness import DriverHarness

SIZE = 24 << 20
TOLERANCE = 4 << 20  # metadata of the file system


async def _measure(harness: DriverHarness) -> dict[DiskKind, int]:
    return {use.kind: use.bytes for use in (await harness.driver.measure_disk()).uses}


async def test_the_report_has_what_sandboxes_write_and_snapshots_keep(harness: DriverHarness) -> None:
    if harness.kind == "cluster":
        pytest.skip("it reports the disk of the engine's machine, which has no sandboxes here")
    before = await _measure(harness)
    handle, agent = await harness.create()
    assert (await agent.run(f"head -c {SIZE} /dev/urandom > big && sync")).code == 0
    written = await _measure(harness)
    assert abs(written[DiskKind.SANDBOXES] - before[DiskKind.SANDBOXES] - SIZE) < TOLERANCE
    await harness.driver.snapshot(handle, "kept")
    await harness.driver.kill(handle)
    kept = await _measure(harness)
    needed = sum(kept.get(kind, 0) - before.get(kind, 0) for kind in (DiskKind.SNAPSHOTS, DiskKind.SHARED))
    assert abs(needed - SIZE) < TOLERANCE, (before, kept)
    assert kept[DiskKind.SANDBOXES] < before[DiskKind.SANDBOXES] + TOLERANCE
    await harness.driver.delete_snapshot("kept")
