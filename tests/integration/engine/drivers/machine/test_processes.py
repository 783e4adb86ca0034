from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sandyard.engine.drivers.machine import processes

_PARENT_PROGRAM = (
    "import subprocess, sys, time; subprocess.Popen(['sleep', '1000']); print('ready', flush=True); time.sleep(1000)"
)

_NAMED_PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, os.fsencode(sys.argv[1]), 0, 0, 0)
print(flush=True)
input()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", _PARENT_PROGRAM], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    for pid in processes.list_process_tree(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_a_process_is_identified_by_pid_and_start_time(parent: subprocess.Popen[bytes]) -> None:
    start = processes.read_start_time(parent.pid)
    assert start is not None
    fd = processes.open_pidfd(parent.pid, start)
    assert fd is not None
    os.close(fd)
    assert processes.open_pidfd(parent.pid, start + 1) is None
    assert processes.open_pidfd(2**22, 1) is None


def test_a_zombie_has_no_start_time() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.read_start_time(process.pid) is None
    process.wait()


async def test_a_process_tree_can_be_stopped_and_continued(parent: subprocess.Popen[bytes]) -> None:
    assert len(processes.list_process_tree(parent.pid)) == 2
    await processes.stop_all(parent.pid)
    assert processes.is_stopped(parent.pid)
    assert set(processes.list_process_tree(parent.pid).values()) == {"T"}
    await processes.stop_all(parent.pid)
    processes.continue_all(parent.pid)
    async with asyncio.timeout(10):
        while "T" in processes.list_process_tree(parent.pid).values():
            await asyncio.sleep(0.01)


def test_usage_counts_the_whole_process_tree(parent: subprocess.Popen[bytes]) -> None:
    _, memory = processes.measure_usage(parent.pid)
    own = int(os.sysconf("SC_PAGE_SIZE"))
    assert memory > own
    assert processes.measure_usage(2**22) == (0.0, 0)


def test_find_by_title_ignores_processes_with_another_title() -> None:
    assert os.getpid() not in set(processes.find_by_title("sandyard nobody"))


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a) R 1 1 (", b"\xc3\xa4\xc3", b"\x0b\x1c\x85"])
def test_processes_are_found_whatever_their_name(name: bytes) -> None:
    """Otherwise one process in a sandbox could keep the engine from ending any other."""
    command = [sys.executable, "-c", _NAMED_PROGRAM, os.fsdecode(name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        found = processes.read_stat(process.pid)
        assert found is not None and found.parent == os.getpid()
        assert process.pid in processes.list_process_tree(os.getpid())
        assert processes.measure_usage(process.pid)[1] > 0
        process.communicate(b"\n")
