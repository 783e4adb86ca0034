"""The relay as a process, without a sandbox."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from sandyard.platform.domain.sandboxes.e2b.relay import Frame

RELAY_ON_A_FULL_DISK = """
import sys
from sandyard.platform.domain.sandboxes.e2b.guest.relay import command
command.SPARE_LIMIT = 0
command.RelayedCommand(["cmd_1", sys.argv[2], "", ""], sys.argv[1], True).run()
"""


def test_a_reader_that_is_slower_than_the_command_gets_the_end_of_its_output(tmp_path: Path) -> None:
    held, rest = (1 << 20) + (128 << 10), 128 << 10  # what the relay holds for its reader, and what stays in the pipe
    command = f"head -c {held} /dev/zero; sleep 0.2; head -c {rest} /dev/zero"
    relay = subprocess.Popen(
        [sys.executable, "-c", RELAY_ON_A_FULL_DISK, str(tmp_path), command], stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "exit").exists():  # until then, nothing is read
        assert time.monotonic() < deadline and relay.poll() is None
        time.sleep(0.01)
    frames = [Frame.parse(line) for line in relay.communicate(timeout=60)[0].splitlines()]
    assert sum(len(frame.chunk[1]) for frame in frames if frame is not None and frame.kind == "1") == held + rest
