"""A bare Jupyter kernel, driven over its own sockets: the floor of a code interpreter. Prints milliseconds as JSON.

Runs in a sandbox, as a file of its own, with a Python that has `ipykernel`: `python kernel.py ROUNDS`.
"""

from __future__ import annotations

import contextlib
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STARTS = 5


def started(folder: str) -> tuple[float, subprocess.Popen[bytes], Any]:
    """Return the milliseconds from the spawn to the kernel's first reply, the process, and a client of it."""
    from jupyter_client.blocking.client import BlockingKernelClient  # noqa: PLC0415 - only where it is installed
    from jupyter_client.connect import write_connection_file  # noqa: PLC0415

    path, _ = write_connection_file(str(Path(folder) / f"{time.monotonic_ns()}.json"))
    began = time.perf_counter()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", path]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = BlockingKernelClient(connection_file=path)
    client.load_connection_file()
    client.start_channels()
    client.kernel_info()
    client.get_shell_msg(timeout=60)
    return (time.perf_counter() - began) * 1000, process, client


def listen(client: Any) -> None:
    """Return when what the kernel tells everybody is heard too: it subscribes in its own time."""
    while True:
        client.kernel_info()
        client.get_shell_msg(timeout=10)
        with contextlib.suppress(queue.Empty):
            while client.get_iopub_msg(timeout=0.5)["content"].get("execution_state") != "idle":
                pass
            return


def execute(client: Any) -> float:
    """Return the milliseconds from the request until the kernel is idle again."""
    began = time.perf_counter()
    request = client.execute("1+1")
    while True:
        message = client.get_iopub_msg(timeout=10)
        if message["parent_header"].get("msg_id") == request and message["content"].get("execution_state") == "idle":
            break
    client.get_shell_msg(timeout=10)
    return (time.perf_counter() - began) * 1000


def main(rounds: int) -> None:
    starts = []
    with tempfile.TemporaryDirectory() as folder:
        for left in reversed(range(STARTS)):
            elapsed, process, client = started(folder)
            starts.append(elapsed)
            if not left:
                listen(client)
                runs = [execute(client) for _ in range(rounds + 3)][3:]
            client.stop_channels()
            process.kill()
            process.wait()
    print(json.dumps({"start": statistics.median(starts), "execute": statistics.median(runs)}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
