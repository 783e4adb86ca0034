from __future__ import annotations

from pathlib import Path

from sandyard.engine.drivers.namespace.machine_limits import raise_machine_limits


def test_limits_are_raised_and_never_lowered(tmp_path: Path) -> None:
    terminals = tmp_path / "kernel/pty/max"
    neighbours = tmp_path / "net/ipv4/neigh/default/gc_thresh3"
    for path, value in ((terminals, "4096"), (neighbours, str((1 << 31) - 1))):
        path.parent.mkdir(parents=True)
        path.write_text(f"{value}\n")
    raise_machine_limits(tmp_path)
    assert int(terminals.read_text()) == 1 << 20
    assert int(neighbours.read_text()) == (1 << 31) - 1
