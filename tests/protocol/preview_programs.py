"""Servers that run in a sandbox, for the tests of previews."""

from __future__ import annotations

ECHO = """
import http.server, json
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        line = f"{self.command} {self.path} {self.headers['Host']} {self.headers.get('X-Mine')} "
        body = line.encode() + self.rfile.read(size)
        if self.path == "/headers":
            body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
        self.send_response(int(self.headers.get("X-Want") or 200))
        self.send_header("X-Echo", "yes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Echo).serve_forever()
"""
WEBSOCKETS = """
import base64, hashlib, os, socketserver, struct
class Echo(socketserver.StreamRequestHandler):
    def frame(self):
        first, second = self.rfile.read(2)
        size = second & 127
        if size == 126: size, = struct.unpack(">H", self.rfile.read(2))
        elif size == 127: size, = struct.unpack(">Q", self.rfile.read(8))
        mask, data = self.rfile.read(4), self.rfile.read(size)
        whole = int.from_bytes(data, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return first & 15, whole.to_bytes(size, "big")
    def send(self, kind, data):
        size = len(data)
        length = bytes([size]) if size < 126 else b"\\x7e" + struct.pack(">H", size) if size < 65536 else b"\\x7f" + struct.pack(">Q", size)
        self.wfile.write(bytes([128 | kind]) + length + data)
    def handle(self):
        head = {}
        path = self.rfile.readline().split()[1]
        while (line := self.rfile.readline().strip()):
            name, _, value = line.partition(b":")
            head[name.strip().lower()] = value.strip()
        key = head.get(b"sec-websocket-key", b"") + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest())
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
            b"Sec-WebSocket-Accept: " + accept + b"\\r\\nSec-WebSocket-Protocol: chat\\r\\n\\r\\n")
        self.send(1, path + b" " + head[b"host"])
        while True:
            kind, data = self.frame()
            self.send(kind, data)
            if kind == 8: return
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
server = Server(("127.0.0.1", 8000), Echo)
open("up", "w").close()
server.serve_forever()
"""
