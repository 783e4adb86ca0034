"""WebSocket frames, and the platform's server for them."""

from __future__ import annotations

import contextlib
from typing import Any

from sandyard.kit.server import BoundedProtocol
from sandyard.kit.websockets import BoundedWebSocket
from tests.harness.asgi import serve_app

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
TEXT, PING, PONG, CLOSE = 0x81, 0x89, 0x8A, 0x88


def frame(opcode: int, data: bytes = b"", *, masked: bool = True) -> bytes:
    size, mask = len(data), 128 if masked else 0
    if size < 126:
        length = bytes([mask | size])
    else:
        length = bytes([mask | 126]) + size.to_bytes(2) if size < 1 << 16 else bytes([mask | 127]) + size.to_bytes(8)
    return bytes([opcode]) + length + (bytes(4) if masked else b"") + data


def serving(app: Any, **options: Any) -> contextlib.AbstractAsyncContextManager[int]:
    return serve_app(app, http=BoundedProtocol, ws=BoundedWebSocket, **options)
