"""Parsing replies of untrusted servers: where they end, and their limits."""

from __future__ import annotations

import pytest

from sandyard.engine.e2b.dataplane.reply import HEADERS_LIMIT, OVERHEAD_LIMIT, BadReplyError, Reply


def parse_reply(data: bytes, method: str = "GET", step: int | None = None) -> Reply:
    reply = Reply(method)
    for offset in range(0, len(data), step or len(data)):
        reply.feed(data[offset : offset + (step or len(data))])
    return reply


@pytest.mark.parametrize("step", [1, 7, None])
@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_a_complete_reply_is_parsed(data: bytes, step: int | None) -> None:
    reply = parse_reply(data, step=step)
    assert reply.complete
    assert reply.keep_alive
    assert reply.head is not None
    assert reply.head.status == 200
    assert reply.take() == b"hello"
    assert reply.waiting == 0


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"",
    ],
)
def test_a_truncated_reply_is_not_complete(data: bytes) -> None:
    reply = parse_reply(data) if data else Reply("GET")
    assert not reply.complete
    assert not reply.end()


def test_a_reply_without_a_length_ends_with_the_connection() -> None:
    reply = parse_reply(b"HTTP/1.0 200 OK\r\n\r\nhel")
    reply.feed(b"lo")
    assert not reply.complete
    assert reply.end()
    assert reply.complete
    assert not reply.keep_alive
    assert reply.take() == b"hello"


@pytest.mark.parametrize("head", [b"204 No Content\r\n", b"304 Not Modified\r\nContent-Length: 5\r\n"])
def test_statuses_without_a_body_complete_the_reply(head: bytes) -> None:
    reply = parse_reply(b"HTTP/1.1 " + head + b"\r\n")
    assert reply.complete
    assert reply.keep_alive
    assert reply.take() == b""


def test_a_reply_to_head_has_no_body_despite_its_content_length() -> None:
    reply = parse_reply(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD")
    assert reply.complete
    assert not reply.keep_alive
    assert reply.take() == b""


def test_connection_close_disables_keep_alive() -> None:
    assert not parse_reply(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx").keep_alive
    assert not parse_reply(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx").keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 99 X\r\n\r\n",
        b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot-a-size\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (HEADERS_LIMIT + 1) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * (OVERHEAD_LIMIT + 1),
        b"HTTP/1.1 200 " + b"O" * (OVERHEAD_LIMIT + 1),
    ],
    ids=lambda data: data[:40],
)
@pytest.mark.parametrize("step", [1000, None])
def test_malformed_replies_are_rejected(data: bytes, step: int | None) -> None:
    with pytest.raises(BadReplyError):
        parse_reply(data, step=step)


def test_an_endless_trailer_is_rejected() -> None:
    reply = parse_reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: ")
    with pytest.raises(BadReplyError):
        for _ in range(OVERHEAD_LIMIT // 1000 + 1):
            reply.feed(b"b" * 1000)


def test_data_beyond_the_content_length_is_rejected_and_the_body_is_kept() -> None:
    reply = parse_reply(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
    with pytest.raises(BadReplyError):
        reply.feed(b"lloHTTP/1.1")
    assert reply.complete
    assert reply.take() == b"hello"
    with pytest.raises(BadReplyError):
        reply.feed(b"x")
