"""A test server that runs inside a sandbox, using only the standard library: `python3 preview_server.py PORT`."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import struct
import sys
import time

open_streams = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        global open_streams  # noqa: PLW0603
        if self.path.startswith("/echo") and self.headers.get("Upgrade", "").lower() == "websocket":
            self.websocket()
        elif self.path == "/drip":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            open_streams += 1
            try:
                for number in range(600):
                    self.wfile.write(b"data: %d\n\n" % number)
                    time.sleep(0.3)
            except OSError:
                pass
            open_streams -= 1
        elif self.path == "/dripping":
            self.respond(200, str(open_streams).encode())
        elif self.path == "/large":
            self.respond(200, b"y" * (32 << 20))
        elif self.path.startswith("/status/"):
            self.respond(int(self.path.rpartition("/")[2]), b"as you wish")
        elif self.path == "/redirect":
            self.respond(302, b"", ("Location", "http://169.254.169.254/"))
        elif self.path == "/cookies":
            wide = "wide=2; Domain=localhost; Path=/"
            ours = "sandyard_preview=stolen; Path=/"
            self.respond(200, b"", ("Set-Cookie", "mine=1; Path=/"), ("Set-Cookie", wide), ("Set-Cookie", ours))
        else:
            size, digest = 0, hashlib.sha256()
            for piece in self.read_body():
                size += len(piece)
                digest.update(piece)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request_info = {"method": self.command, "path": self.path, "headers": headers}
            self.respond(200, json.dumps({**request_info, "size": size, "sha256": digest.hexdigest()}).encode())

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer  # noqa: N815

    def read_body(self):  # type: ignore[no-untyped-def]
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0:
            piece = self.rfile.read(min(65536, left))
            left -= len(piece)
            yield piece

    def respond(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # RFC 6455, as far as an echo needs it ---------------------------------------------------------------------------------

    def websocket(self) -> None:
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        if "chat" in self.headers.get("Sec-WebSocket-Protocol", ""):
            self.send_header("Sec-WebSocket-Protocol", "chat")
        self.end_headers()
        self.close_connection = True
        kind, message = 0, b""
        while True:
            first, second = self.rfile.read(2)
            length = second & 127
            if length == 126:
                (length,) = struct.unpack("!H", self.rfile.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self.rfile.read(8))
            mask = self.rfile.read(4) * (length // 4 + 1)
            data = self.rfile.read(length)
            plain = (int.from_bytes(data, "big") ^ int.from_bytes(mask[:length], "big")).to_bytes(length, "big")
            opcode = first & 15
            if opcode == 8:
                self.frame(8, plain[:2])
                return
            if opcode in (1, 2):
                kind, message = opcode, b""
            message += plain
            if first & 128 and opcode < 8:
                if message.startswith(b"close "):
                    self.frame(8, struct.pack("!H", int(message[6:])) + b"as you wish")
                else:
                    self.frame(kind, message)

    def frame(self, opcode: int, data: bytes) -> None:
        size = len(data)
        head = bytes([128 | opcode])
        head += (
            bytes([size])
            if size < 126
            else b"\x7e" + struct.pack("!H", size)
            if size < 65536
            else b"\x7f" + struct.pack("!Q", size)
        )
        self.wfile.write(head + data)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
