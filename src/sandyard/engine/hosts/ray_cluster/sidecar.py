"""The process between an engine and Ray. It lists Ray's nodes, and starts a keeper on those that the engine wants as hosts.

Ray may end a process that uses it if the head of the cluster is away for a minute. The engine then starts another sidecar.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sandyard.engine.hosts.ray_cluster.keeper import START_S, Keeper
from sandyard.engine.hosts.ray_cluster.messages import RESOURCE, ConnectRequest, StartRequest, describe_error, encode
from sandyard.kit.errors import UnreachableError

LIST_INTERVAL_S = 1.0
KEEPER_START_S = 60.0
"""How long Ray may take to start a keeper. Starting the service takes up to `START_S` more."""
MAX_CONCURRENT_CALLS = 16


class Sidecar:
    """Serves one engine over a socket until the engine closes it, or Ray fails."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(MAX_CONCURRENT_CALLS)
        self._keeper: Any = None

    def run(self) -> None:
        options = ConnectRequest(**json.loads(self._lines.readline())["connect"])
        threading.Thread(target=self._read_requests, daemon=True).start()
        try:
            ray.init(address=options.address, namespace=options.namespace, log_to_driver=False, logging_level="ERROR")
            self._keeper = ray.remote(Keeper)
            while True:
                self._send({"machines": find_machines(ray.nodes())})
                time.sleep(LIST_INTERVAL_S)
        except Exception as error:  # Ray raises its own exceptions, and those of the standard library
            self._send({"failed": describe_error(error)["error"]})

    def _read_requests(self) -> None:
        """Handle requests of the engine. When it closes the connection, end this process, even while Ray is connecting."""
        for line in self._lines:
            message = json.loads(line)
            self._executor.submit(self._answer, message["id"], message["machine"], message["order"])
        os._exit(0)

    def _answer(self, number: int, machine: str, request: str) -> None:
        try:
            answer = self._start_host_service(machine, request)
        except Exception as error:  # as in `run`
            answer = describe_error(error)
        self._send({"id": number, **answer})

    def _start_host_service(self, machine: str, request: str) -> Mapping[str, Any]:
        """Send an encoded `StartRequest` to the keeper of a node, which is started first if there is none. Return its response."""
        if self._keeper is None:
            raise UnreachableError("Ray is not connected yet.")
        options = self._keeper.options(
            name=machine,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False),
        )
        keeper = options.remote(StartRequest.parse(request).address)
        answer = json.loads(ray.get(keeper.start.remote(request), timeout=KEEPER_START_S + START_S))
        return answer if "error" in answer else {"result": answer}

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._connection.sendall(encode(message))


def find_machines(nodes: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the living nodes that may run sandboxes, from Ray's list of all nodes."""
    return [
        {"id": node["NodeID"], "name": node["NodeName"], "address": node["NodeManagerAddress"]}
        for node in nodes
        if node["Alive"] and node["Resources"].get(RESOURCE)
    ]


def main() -> None:
    """Run with the number of a connected socket as the only argument."""
    number = int(sys.argv[1])
    sys.argv[:] = ["/sandyard"]  # Ray adds the folder of the program to the modules of its workers
    Sidecar(socket.socket(fileno=number)).run()
    os._exit(1)  # Ray's threads may never end


if __name__ == "__main__":
    main()
