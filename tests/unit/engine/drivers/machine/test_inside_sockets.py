from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.drivers.machine.inside_sockets import open_socket_inside


def test_a_failure_to_open_the_own_namespace_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real_open = os.open

    def open_once(path: Any, flags: int) -> int:
        if opened:
            raise OSError(24, "Too many open files")
        opened.append(real_open(path, flags))
        return opened[0]

    monkeypatch.setattr(os, "open", open_once)
    with pytest.raises(OSError, match="Too many open files"):
        open_socket_inside(Path("/proc/self/ns/net"), socket.AF_INET)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
