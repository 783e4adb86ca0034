"""Run inside a sandbox: accept an agent's HTTP requests to its model and have the platform answer them.

    python3 -I -S tunnel.py MARK PORT [FOLDER]

The sandbox cannot and need not reach the platform: the platform runs this program through the SDK and exchanges lines of JSON with it on its
standard input and output. This process only connects them to a daemon, which it starts if there is none. The daemon listens on 127.0.0.1 and
outlives both the bridge and the platform: requests wait in it while they are not served. When the bridge breaks, requests whose response has
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
PORTS = 50  # number of ports to try, starting with the requested one
START_S = 20.0
HEARTBEAT_S = 10.0
SILENCE_S = 45.0  # the platform sends something every 10 s
CHUNK = 48 << 10
HEAD_LIMIT = 64 << 10
BODY_LIMIT = 50 << 20
HELD_LIMIT = 200 << 20  # total of all waiting bodies
IN_MEMORY = 1 << 20  # a longer body is kept in a file
CONNECTIONS, WAITING = 256, 64
ACK_EVERY = 32 << 10
LINGER_S = 5.0
LINE_LIMIT = 1 << 20
BODYLESS = (204, 304)
ONCE = "/mcp_"  # requests that may have had effects: once sent to one platform, they are not offered to the next


# the bridge ------------------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    data = line.encode("ascii") + b"\n"
    while data:
        data = data[os.write(1, data) :]


def folder_of(base: str) -> str:
    """Return a folder that belongs to this user alone. Raises OSError."""
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
        raise OSError("%s belongs to somebody else" % path)
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def reach(folder: str) -> "socket.socket | None":
    """Connect to the daemon; None if there is none. The socket of a dead one, as in a copy of a sandbox, does not respond."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(os.path.join(folder, "socket"))
        return link
    except OSError:
        link.close()
        return None


def attached(folder: str, port: int) -> socket.socket:
    """Connect to the daemon, starting it if needed. Raises OSError."""
    link = reach(folder)
    if link is not None:
        return link
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        link = reach(folder)
        if link is None:
            start_daemon(folder, port)
            link = reach(folder)
    finally:
        os.close(lock)
    if link is None:
        raise OSError("it does not respond")
    return link


def start_daemon(folder: str, port: int) -> None:
    """Start the daemon and return when it listens. Raises OSError with the reason if it does not."""
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                detach(its)
                run_daemon(folder, port, its)
        finally:
            os._exit(0)
    os.close(its)
    os.waitpid(child, 0)
    told, deadline = b"", time.monotonic() + START_S
    while True:
        ready, _, _ = select.select([ours], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(ours, 4096) if ready else b""
        told += part
        if not part:
            break
    os.close(ours)
    if told != b"ok":
        raise OSError(told.decode("utf-8", "replace") or "it did not start in time")


def detach(keep: int) -> None:
    """Close everything inherited from the parent process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, keep)
    os.closerange(keep + 1, 1024)
    os.chdir("/")


def bridge(link: socket.socket) -> "NoReturn":
    """Run until one of the two ends, or the platform has been silent for too long."""
    threading.Thread(target=outward, args=(link,), daemon=True).start()
    try:
        while select.select([0], [], [], SILENCE_S)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            link.sendall(data)
    except OSError:
        pass
    os._exit(0)


def outward(link: socket.socket) -> None:
    try:
        while True:
            data = link.recv(65536)
            if not data:
                break
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        pass
    os._exit(0)


# the daemon ------------------------------------------------------------------------------------------------------------


class BadRequest(Exception):  # noqa: N818 - what it is called on the wire
    def __init__(self, status: int, text: str) -> None:
        Exception.__init__(self, text)
        self.status = status


class Gone(Exception):  # noqa: N818 - not an error
    """The agent has closed its connection."""


class Held:
    """The bytes of a request's body: in memory if few, otherwise in an unlinked file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._memory = bytearray()
        self._file: "IO[bytes] | None" = None
        self.size = 0

    def add(self, data: bytes) -> None:
        if self._file is None and self.size + len(data) > IN_MEMORY:
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

    def read(self, offset: int, most: int) -> bytes:
        if self._file is None:
            return bytes(self._memory[offset : offset + most])
        self._file.seek(offset)
        return self._file.read(most)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._memory = bytearray()


class Client:
    """One connection of an agent."""

    def __init__(self, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        self._reader = reader
        self.writer = writer
        self.buffer = bytearray()

    async def more(self) -> None:
        data = await self._reader.read(65536)
        if not data:
            raise Gone
        self.buffer += data

    async def watch(self) -> None:
        """Return when the agent has disconnected. Data it sends meanwhile is kept for the next request."""
        try:
            while len(self.buffer) < HEAD_LIMIT:
                await self.more()
            while not self.writer.transport.is_closing():
                await asyncio.sleep(1)
        except (Gone, OSError):
            pass

    async def drop(self) -> None:
        """Discard input until Gone."""
        while True:
            self.buffer.clear()
            await self.more()

    async def line(self, limit: int) -> bytes:
        while True:
            end = self.buffer.find(b"\n")
            if end >= 0:
                line = bytes(self.buffer[:end])
                del self.buffer[: end + 1]
                return line[:-1] if line.endswith(b"\r") else line
            if len(self.buffer) > limit:
                raise BadRequest(431, "The request headers are too long.")
            await self.more()

    async def some(self, most: int) -> bytes:
        if not self.buffer:
            await self.more()
        data = bytes(self.buffer[:most])
        del self.buffer[:most]
        return data

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


class Head:
    """The first lines of a request."""

    def __init__(self, method: str, target: str, version: str, headers: "list[tuple[str, str]]") -> None:
        self.method, self.target, self.version, self.headers = method, target, version, headers
        words = ",".join(value for name, value in headers if name == "connection").lower()
        self.keep = "close" not in words and (version == "HTTP/1.1" or "keep-alive" in words)

    def all(self, name: str) -> "list[str]":
        return [value for known, value in self.headers if known == name]

    @property
    def chunked(self) -> bool:
        codings = self.all("transfer-encoding")
        if codings and (self.all("content-length") or [word.strip().lower() for word in codings] != ["chunked"]):
            raise BadRequest(400, "A body must be either chunked or have a length.")
        return bool(codings)

    @property
    def length(self) -> int:
        lengths = set(self.all("content-length")) or {"0"}
        text = lengths.pop()
        if lengths or not (text.isdigit() and len(text) < 16):
            raise BadRequest(400, "The length of the body is not a number.")
        if int(text) > BODY_LIMIT:
            raise BadRequest(413, "The body is larger than %d MiB." % (BODY_LIMIT >> 20))
        return int(text)


async def read_head(client: Client) -> Head:
    """Read the head of a request. Raises Gone if there is no further request."""
    line = b""
    while not line:  # old clients may send an empty line before a request
        line = await client.line(HEAD_LIMIT)
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[1].startswith("/"):
        raise BadRequest(400, "This is not an HTTP/1.1 request.")
    headers: "list[tuple[str, str]]" = []
    size = 0
    while True:
        line = await client.line(HEAD_LIMIT)
        if not line:
            return Head(words[0], words[1], words[2], headers)
        size += len(line)
        if size > HEAD_LIMIT:
            raise BadRequest(431, "The request headers are too long.")
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest(400, "A header has no name.")
        headers.append((name.lower(), value.strip()))


class Exchange:
    """One request until its response has reached the agent."""

    def __init__(self, number: int, head: Head, body: Held) -> None:
        self.number, self.head, self.body = number, head, body
        self.begun = False
        self.bringing: "asyncio.Future[None] | None" = None
        self.wanted = 0
        self.more_wanted = asyncio.Event()
        self.answer: "asyncio.Queue[dict[str, Any]]" = asyncio.Queue()


class Link:
    """The connection to the platform while it lasts."""

    def __init__(self, writer: "asyncio.StreamWriter") -> None:
        self._writer = writer
        self._turn = asyncio.Lock()
        self.tasks: "set[asyncio.Future[Any]]" = set()

    async def send(self, **frame: "Any") -> None:
        """Send a frame. Raises OSError if the link is broken; the frame is then sent again to the next one or dropped."""
        async with self._turn:
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
        self._exchanges: "dict[int, Exchange]" = {}
        self._link: "Link | None" = None
        self._clients = 0
        self._held = 0
        self._next = 0
        self.port = 0

    # agents ------------------------------------------------------------------------------------------------------------

    async def serve_agent(self, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        client = Client(reader, writer)
        self._clients += 1
        try:
            if self._clients > CONNECTIONS:
                raise BadRequest(503, "Too many connections to the model are open.")
            while await self._one(client):
                pass
        except BadRequest as error:
            await refuse(client, error.status, str(error))
        except (Gone, OSError):
            pass
        finally:
            self._clients -= 1
            writer.close()

    async def _one(self, client: Client) -> bool:
        """Serve a request. Returns whether there may be another one on this connection."""
        head, body = await read_head(client), Held(self._folder)
        try:
            await self._read_body(client, head, body)
            if len(self._exchanges) >= WAITING:
                raise BadRequest(503, "Too many requests to the model are waiting.")
            self._next += 1
            exchange = self._exchanges[self._next] = Exchange(self._next, head, body)
            try:
                if self._link is not None:
                    self._offer(self._link, exchange)
                return await self._answered(client, exchange)
            finally:
                del self._exchanges[exchange.number]
                if exchange.bringing is not None:
                    exchange.bringing.cancel()
        finally:
            self._held -= body.size
            body.close()

    async def _read_body(self, client: Client, head: Head, body: Held) -> None:
        chunked, length = head.chunked, head.length
        if "100-continue" in ",".join(head.all("expect")).lower():
            await client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not chunked:
            await self._take(client, body, length)
            return
        while True:
            size = (await client.line(1024)).partition(b";")[0].strip()
            try:
                length = int(size.decode("ascii"), 16) if size.isalnum() and len(size) < 12 else -1
            except ValueError:
                length = -1
            if length < 0:
                raise BadRequest(400, "A chunk of the body has no valid size.")
            await self._take(client, body, length)
            if not length:
                while await client.line(HEAD_LIMIT):
                    pass  # trailers
                return
            if await client.line(16):
                raise BadRequest(400, "A chunk of the body is longer than its size.")

    async def _take(self, client: Client, body: Held, length: int) -> None:
        if body.size + length > BODY_LIMIT:
            raise BadRequest(413, "The body is larger than %d MiB." % (BODY_LIMIT >> 20))
        while length:
            data = await client.some(min(length, 65536))
            if self._held + len(data) > HELD_LIMIT:
                raise BadRequest(503, "Too many large requests to the model are waiting.")
            try:
                body.add(data)
            except OSError:
                raise BadRequest(507, "The sandbox has no disk space for the request.") from None
            self._held += len(data)
            length -= len(data)

    async def _answered(self, client: Client, exchange: Exchange) -> bool:
        gone = self._loop.create_task(client.watch())
        try:
            writing: "Writing | None" = None
            while True:
                frame = await self._next_frame(exchange, gone)
                kind = frame["t"]
                if kind == "head":
                    writing = Writing(client, exchange.head, frame)
                    await writing.begin()
                elif writing is None or kind == "cut":
                    raise Gone
                elif kind == "fin":
                    return await writing.end()
                else:
                    await self._told(exchange, await writing.add(binascii.a2b_base64(frame["d"])))
        except (Gone, OSError):
            await self._cancel(exchange)
            raise Gone from None
        finally:
            gone.cancel()
            await asyncio.wait([gone])

    async def _next_frame(self, exchange: Exchange, gone: "asyncio.Future[None]") -> "dict[str, Any]":
        if not exchange.answer.empty():
            return exchange.answer.get_nowait()
        coming = self._loop.create_task(exchange.answer.get())
        both: "list[asyncio.Future[Any]]" = [coming, gone]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            return coming.result()
        coming.cancel()
        raise Gone

    async def _told(self, exchange: Exchange, taken: int) -> None:
        if taken and self._link is not None:
            try:
                await self._link.send(t="ack", id=exchange.number, n=taken)
            except OSError:
                pass  # the end of the link cuts this response off

    async def _cancel(self, exchange: Exchange) -> None:
        exchange.begun = True  # so that no other link gets it
        if self._link is not None:
            try:
                await self._link.send(t="cancel", id=exchange.number)
            except OSError:
                pass

    # the platform ------------------------------------------------------------------------------------------------------

    async def serve_platform(self, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        """Serve the newest connection. An older one belongs to a platform that has died or will notice soon."""
        if self._link is not None:
            self._drop(self._link)
        link = self._link = Link(writer)
        try:
            await link.send(t="hello", v=1, port=self.port)
            link.tasks.add(self._loop.create_task(self._beat(link)))
            for number in sorted(self._exchanges):
                if not self._exchanges[number].begun:
                    self._offer(link, self._exchanges[number])
            while self._link is link:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    break
                self._hear(json.loads(line.decode("ascii")))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not the platform, or it died in the middle of a line
        finally:
            if self._link is link:
                self._drop(link)

    def _drop(self, link: Link) -> None:
        self._link = None
        link.close()
        for exchange in self._exchanges.values():
            if exchange.begun:
                exchange.answer.put_nowait({"t": "cut"})

    def _offer(self, link: Link, exchange: Exchange) -> None:
        task = exchange.bringing = self._loop.create_task(self._bring(link, exchange))
        link.tasks.add(task)
        task.add_done_callback(link.tasks.discard)

    async def _bring(self, link: Link, exchange: Exchange) -> None:
        head, exchange.wanted = exchange.head, 0
        once = head.target.startswith(ONCE)
        exchange.begun = once and not exchange.body.size
        try:
            await link.send(
                t="req",
                id=exchange.number,
                method=head.method,
                target=head.target,
                headers=head.headers,
                size=exchange.body.size,
            )
            offset = 0
            while offset < exchange.body.size:
                while not exchange.wanted:
                    exchange.more_wanted.clear()
                    await exchange.more_wanted.wait()
                data = exchange.body.read(offset, min(CHUNK, exchange.wanted))
                offset += len(data)
                exchange.wanted -= len(data)
                exchange.begun = exchange.begun or (once and offset >= exchange.body.size)
                await link.send(t="body", id=exchange.number, d=binascii.b2a_base64(data).decode("ascii").strip())
        except (OSError, ValueError):
            pass  # the link is broken, or the agent has disconnected

    def _hear(self, frame: "dict[str, Any]") -> None:
        exchange = self._exchanges.get(frame.get("id", -1))
        if exchange is None:
            return  # a ping, or for an agent that has disconnected
        kind = frame["t"]
        if kind == "want":
            exchange.wanted += int(frame["n"])
            exchange.more_wanted.set()
        elif kind in ("head", "data", "fin", "cut"):
            exchange.begun = True
            exchange.answer.put_nowait(frame)

    async def _beat(self, link: Link) -> None:
        try:
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await link.send(t="ping")
        except OSError:
            pass


class Writing:
    """A response on its way to the agent."""

    def __init__(self, client: Client, asked: Head, frame: "dict[str, Any]") -> None:
        self._client = client
        self._status = int(frame["status"])
        self._headers = [(str(name).lower(), str(value)) for name, value in frame["headers"]]
        self._empty = asked.method == "HEAD" or self._status in BODYLESS
        known = any(name == "content-length" for name, _ in self._headers)
        self._chunked = not (self._empty or known) and asked.version == "HTTP/1.1"
        self._keep = asked.keep and (self._empty or known or self._chunked)
        self._unsaid = 0

    async def begin(self) -> None:
        lines = ["HTTP/1.1 %d %s" % (self._status, "OK" if self._status == 200 else "Status")]
        lines += ["%s: %s" % header for header in self._headers if not set("\r\n") & set("".join(header))]
        if self._chunked:
            lines.append("transfer-encoding: chunked")
        lines.append("connection: %s" % ("keep-alive" if self._keep else "close"))
        await self._client.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace"))

    async def add(self, data: bytes) -> int:
        """Write data. Returns the number of received bytes to report to the platform."""
        if data and not self._empty:
            await self._client.write(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)
        self._unsaid += len(data)
        if self._unsaid < ACK_EVERY:
            return 0
        taken, self._unsaid = self._unsaid, 0
        return taken

    async def end(self) -> bool:
        if self._chunked:
            await self._client.write(b"0\r\n\r\n")
        return self._keep


async def refuse(client: Client, status: int, text: str) -> None:
    """Respond with an error, and keep reading for a moment: closing before the rest has arrived would discard the response."""
    body = json.dumps({"error": {"type": "sandyard_tunnel", "message": text}}).encode("ascii")
    head = "HTTP/1.1 %d Status\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    try:
        await client.write((head % (status, len(body))).encode("ascii") + body)
        client.writer.write_eof()
        await asyncio.wait_for(client.drop(), LINGER_S)
    except (Gone, OSError, asyncio.TimeoutError):
        pass


def listen(folder: str, wished: int) -> socket.socket:
    """Listen on the recorded port, or else the requested one, or else one of the next. Raises OSError."""
    noted = os.path.join(folder, "port")
    try:
        with open(noted) as file:
            before = [int(file.read())]
    except (OSError, ValueError):
        before = []
    for port in before + list(range(wished, min(wished + PORTS, 65536))) + [0]:
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("127.0.0.1", port))
            door.listen(128)
        except (OSError, OverflowError):
            door.close()
            continue
        with open(noted, "w") as file:
            file.write(str(door.getsockname()[1]))
        return door
    raise OSError("no port is free")


def run_daemon(folder: str, wished: int, ready: int) -> None:
    """Serve forever. Writes to `ready` that it does, or why not."""
    global asyncio  # noqa: PLW0603 - the bridge does without it, and is there sooner
    try:
        import asyncio

        door = listen(folder, wished)
        path = os.path.join(folder, "socket")
        if os.path.exists(path):
            os.unlink(path)
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own.bind(path)
        own.listen(8)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        daemon = Daemon(folder, loop)
        daemon.port = door.getsockname()[1]
        loop.run_until_complete(asyncio.start_server(daemon.serve_agent, sock=door))
        loop.run_until_complete(asyncio.start_unix_server(daemon.serve_platform, sock=own, limit=LINE_LIMIT))
    except Exception as error:
        os.write(ready, ("%s: %s" % (type(error).__name__, error)).encode("utf-8", "replace")[:1000])
        os._exit(1)
    os.write(ready, b"ok")
    os.close(ready)
    loop.run_forever()


def main(arguments: "list[str]") -> None:
    mark, port = arguments[0], int(arguments[1])
    say("\n:: " + mark)
    try:
        link = attached(folder_of(arguments[2] if len(arguments) > 2 else BASE), port)
    except OSError as error:
        say(json.dumps({"t": "error", "text": str(error)}))
        return
    bridge(link)


if __name__ == "__main__":
    main(sys.argv[1:])
