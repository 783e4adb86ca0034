"""Output of a command: what is read from it, stored in the journal and sent to the platform."""

import binascii
import errno
import fcntl
import os

from sandyard.platform.domain.sandboxes.e2b.guest.relay.journal import BASES, is_open_file

CHUNK = 48 << 10
LIVE_LIMIT = 512 << 10  # of a stream's output is sent in lines per interval; the reader fetches more from the journal
LIVE_INTERVAL = 0.05  # also the minimum time between two requests to fetch
PIPE_SIZE = 256 << 10
F_SETPIPE_SZ = 1031  # in fcntl since Python 3.10


def encode(text: str) -> str:
    return binascii.b2a_base64(text.encode("utf-8", "surrogateescape")).decode("ascii").strip()


def write_line(line: str) -> None:
    data = line.encode("ascii") + b"\n"
    while data:
        data = data[os.write(1, data) :]


def fetch_line(number: int, end: int, folder: str) -> str:
    return ":b %d %d %d" % (number, end, 0 if folder.startswith(BASES[0]) else 1)


class Stream:
    """One of the command's two output streams.

    What does not fit on the disk waits in memory for the live reader, and the journal ends there: it always holds the
    beginning of the output, without gaps.
    """

    def __init__(self, number: int, name: str, folder: str, limit: "int | None") -> None:
        read, self.child_end = os.pipe()
        os.set_blocking(read, False)
        try:
            fcntl.fcntl(read, F_SETPIPE_SZ, PIPE_SIZE)
        except OSError:
            pass  # the user has too many large pipes
        self.number = number
        self.pipe: "int | None" = read
        self.folder = folder
        self.path = os.path.join(folder, name)
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.limit = limit
        self.total = self.kept = self.sent = 0
        self.tail = bytearray()
        self.whole = True
        self.interval_end = 0.0
        self.live_left = 0  # what remains of this interval's LIVE_LIMIT

    def read(self) -> bool:
        """Read available output. Returns True if there was any."""
        if self.pipe is None:
            return False
        try:
            data = os.read(self.pipe, PIPE_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            os.close(self.pipe)
            self.pipe = None
            return False
        self.total += len(data)
        while data and self.whole:
            try:
                if self.limit is not None and self.kept + len(data) > self.limit:
                    raise OSError(errno.ENOSPC, "")
                count = os.write(self.file, data)
            except OSError:
                self.whole = False
                break
            self.kept += count
            data = data[count:]
        self.tail += data
        return True

    def wants_more(self) -> bool:
        return self.pipe is not None and len(self.tail) < 1 << 20

    def is_held(self, now: float) -> bool:
        """Return whether nothing may be sent before the interval has ended."""
        return self.sent < self.kept and self.live_left <= 0 and now < self.interval_end

    def next_line(self, now: float) -> "str | None":
        """Return the next line for the live reader. None if there is nothing yet."""
        if self.is_held(now):
            return None
        start = self.sent
        if start < self.kept:
            if now >= self.interval_end:
                self.interval_end = now + LIVE_INTERVAL
                self.live_left = LIVE_LIMIT
                if self.kept - start > LIVE_LIMIT and is_open_file(self.path, self.file):
                    self.live_left = 0
                    self.sent = self.kept
                    return fetch_line(self.number, self.kept, self.folder)
            data = os.pread(self.file, min(CHUNK, self.kept - start), start)
            self.live_left -= len(data)
        else:
            data = bytes(self.tail[:CHUNK])
            del self.tail[:CHUNK]
        if not data:
            return None
        self.sent += len(data)
        return ":%d %d %s" % (self.number, start, binascii.b2a_base64(data).decode("ascii").strip())


class LiveOutput:
    """This program's own output. Writing never blocks, so that a slow or dead reader stops nothing."""

    def __init__(self) -> None:
        os.set_blocking(1, False)
        self.buffer = b""
        self.gone = False

    def line(self, text: str) -> None:
        self.buffer += text.encode("ascii") + b"\n"

    def flush(self) -> None:
        try:
            while self.buffer:
                self.buffer = self.buffer[os.write(1, self.buffer) :]
        except BlockingIOError:
            pass
        except OSError:
            self.gone = True
            self.buffer = b""

    def feed(self, streams: "list[Stream]", now: float) -> None:
        """Send what is available, as far as the reader accepts it."""
        for stream in streams:
            while not self.gone and not self.buffer and stream.sent < stream.total:
                line = stream.next_line(now)
                if line is None:
                    break
                self.line(line)
                self.flush()
        if self.gone:
            for stream in streams:
                stream.tail = bytearray()

    def can_send(self, streams: "list[Stream]", now: float) -> bool:
        waiting = any(stream.sent < stream.total and not stream.is_held(now) for stream in streams)
        return not self.gone and (bool(self.buffer) or waiting)

    def is_behind(self, streams: "list[Stream]") -> bool:
        return not self.gone and (bool(self.buffer) or any(stream.sent < stream.total for stream in streams))
