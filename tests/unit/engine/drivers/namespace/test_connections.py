from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from sandyard.engine.drivers.namespace import connections
from sandyard.kit.errors import UnreachableError


@pytest.mark.parametrize("reply", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["incomplete", "complete"])
async def test_descriptors_that_an_agent_sends_are_never_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: bytes
) -> None:
    monkeypatch.setattr(connections, "_TIMEOUT_S", 0.05)
    reader, writer = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()
        call = asyncio.create_task(connections.connect_port_through_agent(str(tmp_path / "agent.sock"), "one", 80))
        await asyncio.sleep(0)
        agent, _ = listener.accept()
        with agent:
            socket.send_fds(agent, [reply], [writer])
            os.close(writer)
            with pytest.raises(UnreachableError):
                await call
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b"", "the other end of the pipe is still open"
    os.close(reader)
