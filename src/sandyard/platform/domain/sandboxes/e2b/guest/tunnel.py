"""Run inside a sandbox: accept an agent's HTTP requests to its model and have the platform answer them.

    python3 -I -S tunnel.py MARK PORT [FOLDER]

MARK is printed first, so that the platform can skip what the login shell has written before.

The sandbox cannot and need not reach the platform: the platform runs this program through the SDK and exchanges lines of JSON with it on its
standard input and output. This process only connects them to a daemon, which it starts if there is none. The daemon listens on 127.0.0.1 and
outlives both the bridge and the platform: requests wait in it until they are served. When the bridge breaks, requests whose response has
started are cut off, and so are those for MCP servers, which may have had effects; all others are offered to the next bridge.

To the platform: `hello` (the port), `req` (a complete request, with its size), `body` (the requested bytes of it), `ack` (bytes of a
response that the agent has received), `cancel` (the agent disconnected), `ping`, `error` (nothing can be served). From the platform: `want`
(bytes of a body), `head`, `data`, `fin` (a response), `cut` (it broke off), `ping`.

Standard library only, Python 3.6 or newer. Only the sandbox's own processes reach it, and it holds no secrets.
"""

import binascii
import fcntl
import json
import os
import select
import socket
import sys
import threading
import time

MYPY = False
if MYPY:
    import asyncio
    from typing import IO, Any, NoReturn

BASE = "/tmp/.sandyard"
PORT_COUNT = 50  # number of ports to try, starting with the requested one
START_S = 20.0
HEARTBEAT_S = 10.0
SILENCE_S = 45.0  # the platform sends something every 10 s
CHUNK = 48 << 10
HEAD_LIMIT = 64 << 10
BODY_LIMIT = 50 << 20
TOTAL_BODY_LIMIT = 200 << 20  # total of all waiting bodies
MEMORY_BODY_LIMIT = 1 << 20  # a longer body is kept in a file
MAX_CONNECTIONS, MAX_WAITING = 256, 64
ACK_EVERY = 32 << 10
DISCARD_S = 5.0
LINE_LIMIT = 1 << 20
BODYLESS = (204, 304)
ONCE_PREFIX = "/mcp_"  # requests that may have had effects: once sent to one platform, they are not offered to the next


# the bridge ------------------------------------------------------------------------------------------------------------


def write_output(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def create_private_folder(base: str) -> str:
    """Return the path of a folder that only this user can access; create it if needed. Raises OSError."""
    try:
        os.mkdir(base)
        os.chmod(base, 0o1777)
    except FileExistsError:
        pass
    path = os.path.join(base, "tunnel-%d" % os.geteuid())
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o170000 != 0o040000:
        raise OSError("%s belongs to another user" % path)
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def connect_to_daemon(folder: str) -> "socket.socket | None":
    """Connect to the daemon. Returns None if none is running: the socket of a dead one, as in a fork, may still be there."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(os.path.join(folder, "socket"))
        return link
    except OSError:
        link.close()
        return None


def connect_or_start_daemon(folder: str, port: int) -> socket.socket:
    """Connect to the daemon, starting it if needed. Raises OSError."""
    link = connect_to_daemon(folder)
    if link is not None:
        return link
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        link = connect_to_daemon(folder)
        if link is None:
            start_daemon(folder, port)
            link = connect_to_daemon(folder)
    finally:
        os.close(lock)
    if link is None:
        raise OSError("the tunnel's daemon does not respond")
    return link


def start_daemon(folder: str, port: int) -> None:
    """Start the daemon and return when it listens. Raises OSError with the reason if it does not."""
    ready_reader, ready_writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                detach(ready_writer)
                run_daemon(folder, port, ready_writer)
        finally:
            os._exit(0)
    os.close(ready_writer)
    os.waitpid(child, 0)
    report, deadline = b"", time.monotonic() + START_S
    while True:
        ready, _, _ = select.select([ready_reader], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(ready_reader, 4096) if ready else b""
        report += part
        if not part:
            break
    os.close(ready_reader)
    if report != b"ok":
        raise OSError(report.decode("utf-8", "replace") or "the tunnel's daemon did not start in time")


def detach(keep: int) -> None:
    """Close all inherited descriptors except `keep`, and leave the working directory."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, keep)
    os.closerange(keep + 1, 1024)
    os.chdir("/")


def bridge(link: socket.socket) -> "NoReturn":
    """Copy data in both directions until one end closes, or the platform has been silent for too long."""
    threading.Thread(target=copy_daemon_output, args=(link,), daemon=True).start()
    try:
        while select.select([0], [], [], SILENCE_S)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            link.sendall(data)
    except OSError:
        pass
    os._exit(0)


def copy_daemon_output(link: socket.socket) -> None:
    try:
        for data in iter(lambda: link.recv(65536), b""):
            write_output(data)
    except OSError:
        pass
    os._exit(0)


# the daemon ------------------------------------------------------------------------------------------------------------


class RequestError(Exception):
    """A request that is answered with an error status."""

    def __init__(self, status: int, text: str) -> None:
        Exception.__init__(self, text)
        self.status = status


class AgentDisconnectedError(Exception):
    """The agent has closed its connection."""


class RequestBody:
    """The body of a request: in memory if it is short, otherwise in an unlinked file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._memory = bytearray()
        self._file: "IO[bytes] | None" = None
        self.size = 0

    def add(self, data: bytes) -> None:
        if self._file is None and self.size + len(data) > MEMORY_BODY_LIMIT:
            path = os.path.join(self._folder, "body-%d" % id(self))
            self._file = open(path, "w+b")
            os.unlink(path)
            self._file.write(self._memory)
            self._memory = bytearray()
        if self._file is None:
            self._memory += data
        else:
            self._file.seek(0, 2)
            self._file.write(data)
        self.size += len(data)

    def read(self, offset: int, limit: int) -> bytes:
        if self._file is None:
            return bytes(self._memory[offset : offset + limit])
        self._file.seek(offset)
        return self._file.read(limit)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._memory = bytearray()


class AgentConnection:
    """One connection of an agent."""

    def __init__(self, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        self._reader = reader
        self.writer = writer
        self.buffer = bytearray()

    async def read_more(self) -> None:
        """Read into the buffer. Raises AgentDisconnectedError."""
        data = await self._reader.read(65536)
        if not data:
            raise AgentDisconnectedError
        self.buffer += data

    async def wait_for_disconnect(self) -> None:
        """Return when the agent has disconnected. Data it sends meanwhile is kept for the next request."""
        try:
            while len(self.buffer) < HEAD_LIMIT:
                await self.read_more()
            while not self.writer.transport.is_closing():
                await asyncio.sleep(1)
        except (AgentDisconnectedError, OSError):
            pass

    async def discard_input(self) -> None:
        """Discard input until the agent disconnects. Raises AgentDisconnectedError then."""
        while True:
            self.buffer.clear()
            await self.read_more()

    async def read_line(self, limit: int) -> bytes:
        while True:
            end = self.buffer.find(b"\n")
            if end >= 0:
                line = bytes(self.buffer[:end])
                del self.buffer[: end + 1]
                return line[:-1] if line.endswith(b"\r") else line
            if len(self.buffer) > limit:
                raise RequestError(431, "The request headers are too long.")
            await self.read_more()

    async def read_some(self, limit: int) -> bytes:
        if not self.buffer:
            await self.read_more()
        data = bytes(self.buffer[:limit])
        del self.buffer[:limit]
        return data

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


class RequestHead:
    """The request line and the headers of a request."""

    def __init__(self, method: str, target: str, version: str, headers: "list[tuple[str, str]]") -> None:
        self.method, self.target, self.version, self.headers = method, target, version, headers
        words = ",".join(value for name, value in headers if name == "connection").lower()
        self.keep_alive = "close" not in words and (version == "HTTP/1.1" or "keep-alive" in words)

    def get_values(self, name: str) -> "list[str]":
        return [value for key, value in self.headers if key == name]

    @property
    def is_chunked(self) -> bool:
        codings = self.get_values("transfer-encoding")
        if codings and (self.get_values("content-length") or [word.strip().lower() for word in codings] != ["chunked"]):
            raise RequestError(400, "A request body needs either Transfer-Encoding: chunked or a Content-Length.")
        return bool(codings)

    @property
    def length(self) -> int:
        lengths = set(self.get_values("content-length")) or {"0"}
        text = lengths.pop()
        if lengths or not (text.isdigit() and len(text) < 16):
            raise RequestError(400, "The request has an invalid Content-Length.")
        if int(text) > BODY_LIMIT:
            raise RequestError(413, "The body is larger than %d MiB." % (BODY_LIMIT >> 20))
        return int(text)


async def read_head(client: AgentConnection) -> RequestHead:
    """Read the head of a request. Raises AgentDisconnectedError if there is no further request."""
    line = b""
    while not line:  # old clients may send an empty line before a request
        line = await client.read_line(HEAD_LIMIT)
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[1].startswith("/"):
        raise RequestError(400, "This is not an HTTP/1.1 request.")
    headers: "list[tuple[str, str]]" = []
    size = 0
    while True:
        line = await client.read_line(HEAD_LIMIT)
        if not line:
            return RequestHead(words[0], words[1], words[2], headers)
        size += len(line)
        if size > HEAD_LIMIT:
            raise RequestError(431, "The request headers are too long.")
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not name or name != name.strip():
            raise RequestError(400, "The request has an invalid header.")
        headers.append((name.lower(), value.strip()))


class AgentRequest:
    """One request until its response has reached the agent.

    `has_started`: it may have had effects, so it is not offered to another platform. `requested_bytes`: bytes of the body that the
    platform has asked for and not received yet. `frames`: the platform's response.
    """

    def __init__(self, number: int, head: RequestHead, body: RequestBody) -> None:
        self.number, self.head, self.body = number, head, body
        self.has_started = False
        self.sending: "asyncio.Future[None] | None" = None
        self.requested_bytes = 0
        self.more_requested = asyncio.Event()
        self.frames: "asyncio.Queue[dict[str, Any]]" = asyncio.Queue()


class PlatformLink:
    """The connection to the platform while it lasts."""

    def __init__(self, writer: "asyncio.StreamWriter") -> None:
        self._writer = writer
        self._write_lock = asyncio.Lock()
        self.tasks: "set[asyncio.Future[Any]]" = set()

    async def send(self, **frame: "Any") -> None:
        """Send a frame. Raises OSError if the link is broken; the caller sends the frame again on the next link, or drops it."""
        async with self._write_lock:
            self._writer.write(json.dumps(frame).encode("ascii") + b"\n")
            await self._writer.drain()

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        self._writer.close()


class Daemon:
    def __init__(self, folder: str, loop: "asyncio.AbstractEventLoop") -> None:
        self._folder = folder
        self._loop = loop
        self._requests: "dict[int, AgentRequest]" = {}
        self._link: "PlatformLink | None" = None
        self._clients = 0
        self._body_bytes = 0
        self._last_number = 0
        self.port = 0

    # agents ------------------------------------------------------------------------------------------------------------

    async def serve_agent(self, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        client = AgentConnection(reader, writer)
        self._clients += 1
        try:
            if self._clients > MAX_CONNECTIONS:
                raise RequestError(503, "Too many connections to the model are open.")
            while await self._serve_request(client):
                pass
        except RequestError as error:
            await respond_with_error(client, error.status, str(error))
        except (AgentDisconnectedError, OSError):
            pass
        finally:
            self._clients -= 1
            writer.close()

    async def _serve_request(self, client: AgentConnection) -> bool:
        """Serve a request. Returns whether there may be another one on this connection."""
        head, body = await read_head(client), RequestBody(self._folder)
        try:
            await self._read_body(client, head, body)
            if len(self._requests) >= MAX_WAITING:
                raise RequestError(503, "Too many requests to the model are waiting.")
            self._last_number += 1
            request = self._requests[self._last_number] = AgentRequest(self._last_number, head, body)
            try:
                if self._link is not None:
                    self._start_sending(self._link, request)
                return await self._forward_response(client, request)
            finally:
                del self._requests[request.number]
                if request.sending is not None:
                    request.sending.cancel()
        finally:
            self._body_bytes -= body.size
            body.close()

    async def _read_body(self, client: AgentConnection, head: RequestHead, body: RequestBody) -> None:
        chunked, length = head.is_chunked, head.length
        if "100-continue" in ",".join(head.get_values("expect")).lower():
            await client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not chunked:
            await self._read_body_part(client, body, length)
            return
        while True:
            size = (await client.read_line(1024)).partition(b";")[0].strip()
            try:
                length = int(size.decode("ascii"), 16) if size.isalnum() and len(size) < 12 else -1
            except ValueError:
                length = -1
            if length < 0:
                raise RequestError(400, "A chunk of the body has no valid size.")
            await self._read_body_part(client, body, length)
            if not length:
                while await client.read_line(HEAD_LIMIT):
                    pass  # trailers
                return
            if await client.read_line(16):
                raise RequestError(400, "A chunk of the body is longer than its size.")

    async def _read_body_part(self, client: AgentConnection, body: RequestBody, length: int) -> None:
        if body.size + length > BODY_LIMIT:
            raise RequestError(413, "The body is larger than %d MiB." % (BODY_LIMIT >> 20))
        while length:
            data = await client.read_some(min(length, 65536))
            if self._body_bytes + len(data) > TOTAL_BODY_LIMIT:
                raise RequestError(503, "Too many large requests to the model are waiting.")
            try:
                body.add(data)
            except OSError:
                raise RequestError(507, "The sandbox has no disk space for the request.") from None
            self._body_bytes += len(data)
            length -= len(data)

    async def _forward_response(self, client: AgentConnection, request: AgentRequest) -> bool:
        """Write the platform's response to the agent. Returns whether the connection stays open. Raises
        AgentDisconnectedError also if the response broke off."""
        disconnect = self._loop.create_task(client.wait_for_disconnect())
        try:
            response: "ResponseWriter | None" = None
            while True:
                frame = await self._next_frame(request, disconnect)
                kind = frame["t"]
                if kind == "head":
                    response = ResponseWriter(client, request.head, frame)
                    await response.begin()
                elif response is None or kind == "cut":
                    raise AgentDisconnectedError
                elif kind == "fin":
                    return await response.end()
                else:
                    await self._acknowledge(request, await response.add(binascii.a2b_base64(frame["d"])))
        except (AgentDisconnectedError, OSError):
            await self._cancel(request)
            raise AgentDisconnectedError from None
        finally:
            disconnect.cancel()
            await asyncio.wait([disconnect])

    async def _next_frame(self, request: AgentRequest, disconnect: "asyncio.Future[None]") -> "dict[str, Any]":
        if not request.frames.empty():
            return request.frames.get_nowait()
        next_frame = self._loop.create_task(request.frames.get())
        waiting: "list[asyncio.Future[Any]]" = [next_frame, disconnect]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if next_frame.done():
            return next_frame.result()
        next_frame.cancel()
        raise AgentDisconnectedError

    async def _acknowledge(self, request: AgentRequest, count: int) -> None:
        """Report the number of bytes that the agent has received."""
        if count and self._link is not None:
            try:
                await self._link.send(t="ack", id=request.number, n=count)
            except OSError:
                pass  # the end of the link cuts this response off

    async def _cancel(self, request: AgentRequest) -> None:
        request.has_started = True  # so that it is not sent to another platform
        if self._link is not None:
            try:
                await self._link.send(t="cancel", id=request.number)
            except OSError:
                pass

    # the platform ------------------------------------------------------------------------------------------------------

    async def serve_platform(self, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        """Serve the newest connection. An older one belongs to a platform that has died or will notice soon."""
        if self._link is not None:
            self._drop(self._link)
        link = self._link = PlatformLink(writer)
        try:
            await link.send(t="hello", v=1, port=self.port)
            link.tasks.add(self._loop.create_task(self._send_heartbeats(link)))
            for number in sorted(self._requests):
                if not self._requests[number].has_started:
                    self._start_sending(link, self._requests[number])
            while self._link is link:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    break
                self._handle_frame(json.loads(line.decode("ascii")))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not the platform, or it died in the middle of a line
        finally:
            if self._link is link:
                self._drop(link)

    def _drop(self, link: PlatformLink) -> None:
        self._link = None
        link.close()
        for request in self._requests.values():
            if request.has_started:
                request.frames.put_nowait({"t": "cut"})

    def _start_sending(self, link: PlatformLink, request: AgentRequest) -> None:
        task = request.sending = self._loop.create_task(self._send_request(link, request))
        link.tasks.add(task)
        task.add_done_callback(link.tasks.discard)

    async def _send_request(self, link: PlatformLink, request: AgentRequest) -> None:
        head, request.requested_bytes = request.head, 0
        once = head.target.startswith(ONCE_PREFIX)
        request.has_started = once and not request.body.size
        try:
            await link.send(
                t="req",
                id=request.number,
                method=head.method,
                target=head.target,
                headers=head.headers,
                size=request.body.size,
            )
            offset = 0
            while offset < request.body.size:
                while not request.requested_bytes:
                    request.more_requested.clear()
                    await request.more_requested.wait()
                data = request.body.read(offset, min(CHUNK, request.requested_bytes))
                offset += len(data)
                request.requested_bytes -= len(data)
                request.has_started = request.has_started or (once and offset >= request.body.size)
                await link.send(t="body", id=request.number, d=binascii.b2a_base64(data).decode("ascii").strip())
        except (OSError, ValueError):
            pass  # the link is broken, or the agent has disconnected

    def _handle_frame(self, frame: "dict[str, Any]") -> None:
        request = self._requests.get(frame.get("id", -1))
        if request is None:
            return  # a ping, or for an agent that has disconnected
        kind = frame["t"]
        if kind == "want":
            request.requested_bytes += int(frame["n"])
            request.more_requested.set()
        elif kind in ("head", "data", "fin", "cut"):
            request.has_started = True
            request.frames.put_nowait(frame)

    async def _send_heartbeats(self, link: PlatformLink) -> None:
        try:
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await link.send(t="ping")
        except OSError:
            pass


class ResponseWriter:
    """A response on its way to the agent."""

    def __init__(self, client: AgentConnection, request: RequestHead, frame: "dict[str, Any]") -> None:
        self._client = client
        self._status = int(frame["status"])
        self._headers = [(str(name).lower(), str(value)) for name, value in frame["headers"]]
        self._empty = request.method == "HEAD" or self._status in BODYLESS
        has_length = any(name == "content-length" for name, _ in self._headers)
        self._chunked = not (self._empty or has_length) and request.version == "HTTP/1.1"
        self._keep_alive = request.keep_alive and (self._empty or has_length or self._chunked)
        self._unacknowledged = 0

    async def begin(self) -> None:
        """Write the head of the response."""
        lines = ["HTTP/1.1 %d %s" % (self._status, "OK" if self._status == 200 else "Status")]
        lines += ["%s: %s" % header for header in self._headers if not set("\r\n") & set("".join(header))]
        if self._chunked:
            lines.append("transfer-encoding: chunked")
        lines.append("connection: %s" % ("keep-alive" if self._keep_alive else "close"))
        await self._client.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace"))

    async def add(self, data: bytes) -> int:
        """Write data. Returns the number of received bytes to report to the platform."""
        if data and not self._empty:
            await self._client.write(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)
        self._unacknowledged += len(data)
        if self._unacknowledged < ACK_EVERY:
            return 0
        count, self._unacknowledged = self._unacknowledged, 0
        return count

    async def end(self) -> bool:
        """Complete the response. Returns whether the connection stays open."""
        if self._chunked:
            await self._client.write(b"0\r\n\r\n")
        return self._keep_alive


async def respond_with_error(client: AgentConnection, status: int, text: str) -> None:
    """Respond with an error, and keep reading for a moment: closing before the rest has arrived would discard the response."""
    body = json.dumps({"error": {"type": "sandyard_tunnel", "message": text}}).encode("ascii")
    head = "HTTP/1.1 %d Status\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    try:
        await client.write((head % (status, len(body))).encode("ascii") + body)
        client.writer.write_eof()
        await asyncio.wait_for(client.discard_input(), DISCARD_S)
    except (AgentDisconnectedError, OSError, asyncio.TimeoutError):
        pass


def listen(folder: str, preferred_port: int) -> socket.socket:
    """Listen on the port used before, otherwise on the preferred port or a following one. Raises OSError."""
    port_file = os.path.join(folder, "port")
    try:
        with open(port_file) as file:
            before = [int(file.read())]
    except (OSError, ValueError):
        before = []
    for port in before + list(range(preferred_port, min(preferred_port + PORT_COUNT, 65536))) + [0]:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
        except (OSError, OverflowError):
            listener.close()
            continue
        with open(port_file, "w") as file:
            file.write(str(listener.getsockname()[1]))
        return listener
    raise OSError("no port is free")


def run_daemon(folder: str, preferred_port: int, ready: int) -> None:
    """Serve forever. Writes "ok" to the descriptor `ready` when the daemon listens, or the error."""
    global asyncio  # noqa: PLW0603 - the bridge does not need it and starts faster without
    try:
        import asyncio

        listener = listen(folder, preferred_port)
        path = os.path.join(folder, "socket")
        if os.path.exists(path):
            os.unlink(path)
        platform_listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        platform_listener.bind(path)
        platform_listener.listen(8)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        daemon = Daemon(folder, loop)
        daemon.port = listener.getsockname()[1]
        loop.run_until_complete(asyncio.start_server(daemon.serve_agent, sock=listener))
        loop.run_until_complete(
            asyncio.start_unix_server(daemon.serve_platform, sock=platform_listener, limit=LINE_LIMIT)
        )
    except Exception as error:
        os.write(ready, ("%s: %s" % (type(error).__name__, error)).encode("utf-8", "replace")[:1000])
        os._exit(1)
    os.write(ready, b"ok")
    os.close(ready)
    loop.run_forever()


def main(arguments: "list[str]") -> None:
    mark, port = arguments[0], int(arguments[1])
    write_output(b"\n:: %s\n" % mark.encode("ascii"))
    try:
        link = connect_or_start_daemon(create_private_folder(arguments[2] if len(arguments) > 2 else BASE), port)
    except OSError as error:
        write_output(json.dumps({"t": "error", "text": str(error)}).encode("ascii") + b"\n")
        return
    bridge(link)


if __name__ == "__main__":
    main(sys.argv[1:])
