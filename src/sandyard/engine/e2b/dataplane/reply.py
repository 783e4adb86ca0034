"""Incremental parser for one HTTP/1.1 reply from a sandbox.

The server in the sandbox is untrusted: header sizes are limited, framing is checked, and a body is complete only if the
framing says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import httptools

from sandyard.engine.e2b.dataplane.asgi import Headers

OVERHEAD_LIMIT = 64 * 1024
"""How many bytes may arrive in a row without any payload: the head, trailers, chunk extensions."""
HEADERS_LIMIT = 256


class UpstreamError(Exception):
    """The connection into the sandbox failed."""


class BrokenUpstreamError(UpstreamError):
    """The sandbox closed the connection before the exchange was complete."""


class BadReplyError(UpstreamError):
    """The sandbox sent something that is not HTTP or exceeds the limits."""


@dataclass(frozen=True, slots=True)
class Head:
    """The status and headers of a reply. Header names are in lower case."""

    status: int
    headers: Headers = field(default_factory=list)


class Reply:
    """A reply that is being received. Call `feed` with each piece of data, then read `head` and `take`. `complete` is set at the end."""

    def __init__(self, method: str) -> None:
        self.head: Head | None = None
        self.complete = False
        self.keep_alive = True
        self.waiting = 0  # bytes fed and not taken
        self.parts = 0  # chunks and headers so far
        self._bodyless = method == "HEAD"
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._chunks: list[bytes] = []
        self._remaining: int | None = None
        self._until_close = False
        self._progress = False
        self._overhead = 0  # bytes since the last payload

    @property
    def needs_no_parser(self) -> bool:
        """Whether the rest of the body can be read without the parser, because its end is known. Reading is then cheap even if
        the body arrives in many small pieces."""
        return self._until_close or self._remaining is not None

    def feed(self, data: bytes) -> None:
        """Parse data. Raises BadReplyError; valid data before the error can still be taken."""
        if self.complete:
            raise BadReplyError("The sandbox sent unexpected data.")
        if self._until_close:
            self._append(data)
        elif self._remaining is not None:
            self._feed_counted(data)
        else:
            self._feed_parser(data)

    def end(self) -> bool:
        """Handle the end of the connection. Return whether the reply was supposed to end that way."""
        if self._until_close:
            self.complete = True
        return self.complete

    def take(self) -> bytes:
        """Return the data received since the last call."""
        chunks, self._chunks, self.waiting = self._chunks, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self.parts += 1
        if self.head is not None:
            return  # a trailer, which is never forwarded
        if len(self._headers) >= HEADERS_LIMIT:
            raise BadReplyError("The sandbox sent too many headers.")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.head is not None:
            raise BadReplyError("The sandbox sent a second reply.")
        if 100 <= status < 200 and status != 101:
            self._headers = []
            return
        if not 200 <= status <= 599:
            raise BadReplyError(f"The sandbox sent the invalid status {status}.")
        self._determine_framing(status)
        self.keep_alive = self.keep_alive and self._parser.should_keep_alive()
        self.head = Head(status, self._headers)
        self._progress = True

    def on_body(self, body: bytes) -> None:
        self.parts += 1
        self._progress = True
        if self._bodyless:
            return
        if self._remaining is not None:
            self._remaining -= len(body)
        self._append(body)

    def on_message_complete(self) -> None:
        if self.head is not None and not self._until_close:
            self.complete = True

    # parsing

    def _determine_framing(self, status: int) -> None:
        """Determine where the body ends, according to RFC 9112 section 6.3."""
        coding = b",".join(value for name, value in self._headers if name == b"transfer-encoding").strip().lower()
        lengths = {value.strip() for name, value in self._headers if name == b"content-length"}
        if len(lengths) > 1 or not all(value.isdigit() and len(value) < 19 for value in lengths):
            raise BadReplyError("The sandbox sent an invalid Content-Length.")
        if self._bodyless or status in (204, 304):
            self.complete = True
            self.keep_alive = not self._bodyless  # the parser cannot be told that no body follows
        elif coding:
            if coding != b"chunked":
                raise BadReplyError("The sandbox sent an unknown Transfer-Encoding.")
        elif lengths:
            self._remaining = int(lengths.pop())
        else:
            self._until_close = True
            self.keep_alive = False

    def _feed_parser(self, data: bytes) -> None:
        self._progress = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise BadReplyError("The sandbox switched protocols without a request to do so.") from error
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, BadReplyError):
                raise error.__context__ from None
            raise BadReplyError("The sandbox sent invalid HTTP.") from error
        self._overhead = 0 if self._progress else self._overhead + len(data)
        if self._overhead > OVERHEAD_LIMIT:
            raise BadReplyError("The sandbox sent headers that are too large.")

    def _feed_counted(self, data: bytes) -> None:
        """Fast path for a body with a known length: no parser, no copy."""
        assert self._remaining is not None
        surplus = len(data) - self._remaining
        if surplus > 0:
            data = data[: self._remaining]
        self._remaining -= len(data)
        self._append(data)
        self.complete = self._remaining == 0
        if surplus > 0:
            raise BadReplyError("The sandbox sent more than the announced length.")

    def _append(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
            self.waiting += len(data)
