"""The parsers of bytes, each with valid samples and with the errors that it may raise."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import zstandard

from sandyard.cli import sse
from sandyard.cli.backup.archive import CHECKSUMS, MANIFEST, ArchiveReader, Manifest
from sandyard.engine.drivers.cluster import connections as cluster
from sandyard.engine.drivers.machine.net import dns_wire
from sandyard.engine.drivers.machine.net.proxy import host_detection
from sandyard.engine.e2b.dataplane import target
from sandyard.engine.e2b.dataplane.reply import BadReplyError, Reply
from sandyard.engine.guest.files import download, encoding
from sandyard.engine.guest.files.multipart import MultipartReader, parse_boundary
from sandyard.engine.guest.wire import connect, protojson
from sandyard.engine.guest.wire.connection import Connection, PeerGoneError
from sandyard.engine.guest.wire.http1 import BodyError, HttpError, Request, read_request
from sandyard.engine.hosts.authority import read_certificate_request
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.images import auth, reference, unpack
from sandyard.engine.images.stream import LayerError, Stream
from sandyard.kit import age, bounded_json
from sandyard.kit.errors import SandyardError
from sandyard.kit.event_stream import EventStream
from sandyard.kit.secret import Secret
from sandyard.platform.api.client_address import ClientAddressMiddleware
from sandyard.platform.api.guard import parse_host_name
from sandyard.platform.domain.agents.acp import channel, wire
from sandyard.platform.domain.forge import deliveries, description, github_connection, rate_limit, webhooks
from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.git.checkout import conflicts as checkout_conflicts
from sandyard.platform.domain.git.checkout import sandbox_git
from sandyard.platform.domain.models import token_counter
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.preparations import devcontainer
from sandyard.platform.domain.previews.addresses import Addresses
from sandyard.platform.domain.repositories import bundle_import, diff, history, mirror, status
from sandyard.platform.domain.repositories.bare_repository import parse_refs
from sandyard.platform.domain.sandboxes.e2b import directory_pages, ports
from sandyard.platform.domain.sandboxes.e2b.relay import CommandEnded, Frame
from sandyard.platform.domain.tasks import cron

T = TypeVar("T")
COMMIT, OTHER = b"a" * 40, b"b" * 40
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Parser:
    """`largest`: how much of it is tried for its time, because its callers pass no more."""

    parse: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = ()
    largest: int = 64 << 10


def text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return a parser of bytes that decodes what headers or arguments contain."""
    return lambda data: parse(data.decode("utf-8", "replace"))


# the agent in a sandbox -----------------------------------------------------------------------------------------------


class ReceivedConnection:
    """A connection on which everything has arrived already and that is then closed."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self._size = len(data)

    @property
    def buffered(self) -> int:
        return self._size - self._data.tell()

    def take(self, count: int) -> bytes:
        return self._data.read(count)

    async def fill(self, timeout: float) -> bool:
        return False

    async def take_until(self, mark: bytes, limit: int, timeout: float) -> bytes | None:
        start = self._data.tell()
        found = self._data.getvalue().find(mark, start)
        if found < 0 and self.buffered < limit:
            raise PeerGoneError
        size = found + len(mark) - start
        return self.take(size) if found >= 0 and size <= limit else None

    async def receive_into(self, view: memoryview, timeout: float | None) -> int:
        return self._data.readinto(view)

    async def send(self, data: bytes | memoryview) -> None:
        pass


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    raise AssertionError("it waits")


def serve(handle: Callable[[Request], Coroutine[Any, Any, object]]) -> Callable[[bytes], object]:
    async def respond(data: bytes) -> None:
        request = await read_request(cast("Connection", ReceivedConnection(data)))
        if request is not None:
            request.query("path")
            connect.parse_timeout(request)
            await handle(request)

    return lambda data: finish(respond(data))


async def _read_stream(request: Request) -> None:
    async for message in connect.read_messages(request):
        _read_fields(message)


async def _read_unary(request: Request) -> None:
    _read_fields(await connect.read_unary_message(request))


def _read_fields(message: protojson.Message) -> None:
    for get in (
        *(protojson.get_text, protojson.get_flag, protojson.get_uint32, protojson.get_message),
        *(protojson.get_texts, protojson.get_text_map, protojson.get_bytes),
    ):
        try:
            get(message, "processId")
        except protojson.FieldError:
            continue


async def _read_form(request: Request) -> None:
    boundary = parse_boundary(request.headers.get("content-type", ""))
    reader = MultipartReader(encoding.decode_body(request.body, request.headers), boundary or "")
    while await reader.next_part() is not None:
        await reader.read_part(lambda piece: None)


async def _choose_range(request: Request) -> None:
    encoding.choose_encoding(request.headers)
    wanted = download._parse_range(request, 1000, 1_767_225_600)
    if wanted is not None and wanted[1] > 0:
        assert 0 <= wanted[0] < wanted[0] + wanted[1] <= 1000


def make_request(headers: str, body: bytes) -> bytes:
    return f"POST /files?path=a HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode() + body


def make_sized_request(headers: str, body: bytes) -> bytes:
    return make_request(f"{headers}Content-Length: {len(body)}\r\n", body)


FRAMES = connect.make_envelope(b'{"processId": 1, "process_id": "x"}') + connect.make_envelope(b"{}", 2)
FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a b"\r\n\r\nabc\r\n--b\r\n\r\nx\r\n--b--\r\n'
CHUNKED = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (FRAMES[:7], FRAMES[7:])) + b"0\r\n\r\n"
GUEST_ERRORS = (HttpError, BodyError, PeerGoneError, connect.RpcError)
RANGES = ("bytes=0-9", "bytes=-5", "bytes=990-", "bytes=1-2,3-4")
RANGE_HEADERS = "Accept-Encoding: gzip;q=0.5, *;q=0\r\nIf-Range: Thu, 01 Jan 2026 00:00:00 GMT\r\nRange: "

# network --------------------------------------------------------------------------------------------------------------

HELLO = (
    bytes.fromhex("0303") + bytes(32) + b"\0\0\2\x13\x01\1\0" + b"\0\x12" + b"\0\0\0\x0e\0\x0c\0\0\x09a.example"[:18]
)
TLS = b"\x16\3\1" + (len(HELLO) + 4).to_bytes(2, "big") + b"\1" + len(HELLO).to_bytes(3, "big") + HELLO
QUESTION = b"\0\1\1\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1"
ANSWER = (
    b"\0\1\x81\x80\0\1\0\2\0\0\0\0"
    + QUESTION[12:]
    + b"\xc0\x0c\0\5\0\1\0\0\0\1\0\4\1a\xc0\x0c"
    + b"\1a\xc0\x0c\0\1\0\1\0\0\0\1\0\4\1\2\3\4"
)
REPLIES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
)
PROXIES = ClientAddressMiddleware(cast("Any", None), proxies=["10.0.0.0/8", "fd00::/8"])
ADDRESSES = Addresses("https", "preview.example", None)


def _receive_reply(data: bytes) -> None:
    for size in (len(data) or 1, 7):
        reply = Reply("GET")
        for at in range(0, min(len(data), 4096), size):
            reply.feed(data[at : at + size])
        reply.take()
        reply.end()


def _find_target(data: bytes) -> None:
    for name in (b"host", target.SANDBOX_ID, target.SANDBOX_PORT):
        headers = [(b"host", b"49983-abc.example"), (name, data)]
        target.find_target({"headers": headers, "path": "/"})
    scope = {"path": "/files", "query_string": b"signature=x&" + data, "method": "GET"}
    target.parse_signed_file(scope)


def _check_hello(data: bytes) -> None:
    for found in (host_detection.parse_tls(data), host_detection.parse_http(data)):
        assert found is None or found.host is None or 0 < len(found.host) <= 253


# git ------------------------------------------------------------------------------------------------------------------

RAW = (
    b":100644 100644 %b %b M\0a\xff b\0:100644 100755 %b %b R090\0old\0new\0" % (COMMIT, OTHER, COMMIT, OTHER)
    + b"1\t2\ta\xff b\0-\t-\t\0old\0new\0"
)
PATCHES = (
    b':100644 100644 %b %b M\t"a\\303\\244"\n:100644 100644 %b %b R090\told\tnew\n\n' % (COMMIT, OTHER, COMMIT, OTHER)
    + b'diff --git "a/a\\303\\244" b/x\n@@ -1 +1 @@\n-a\n+b\ndiff --git a/old b/new\n'
)
STATUS = (
    b"# branch.oid %b\0# branch.head main\0001 .M N... 100644 100644 100644 %b %b a b\0" % (COMMIT, COMMIT, OTHER)
    + b"2 R. N... 100644 100644 100644 %b %b R100 new\0old\0? x\0" % (COMMIT, OTHER)
    + b"u UU N... 100644 100644 100644 100644 %b %b %b c\0" % (COMMIT, OTHER, COMMIT)
)
LOG = (
    b"\0".join((COMMIT, OTHER, b"Ada", b"ada@example.org", b"1700000000", b"Bob", b"b", b"-1", b"feat: x", b"body\n"))
    + b"\0"
)
REFS = b"ref: refs/heads/main\tHEAD\n%b\tHEAD\n%b\trefs/heads/main\n%b\trefs/tags/v1^{}\n" % (COMMIT, COMMIT, OTHER)
BUNDLE = b"# v2 git bundle\n-%b subject\n%b refs/sandyard/sent\n\nPACK" % (COMMIT, OTHER)
PORTS = (
    b"  sl  local_address\n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 123 1\n"
    + ports._FILES
    + b"\n/proc/12/fd:\nlrwx 3 -> socket:[123]\n"
    + ports._LINES
    + b"\n==> /proc/12/cmdline <==\npython3\0-m\0http.server\0\n"
)


def _parse_listing(data: bytes) -> None:
    listing = diff.parse_raw(data, 10)
    diff.parse_numstat(data, listing)


def _parse_frame(line: str) -> None:
    frame = Frame.parse(line)
    if frame is not None:
        for read in (lambda: frame.chunk, lambda: frame.grown, lambda: frame.refusal):
            try:
                read()
            except ValueError:
                continue


# agents, models and the forge -----------------------------------------------------------------------------------------

STREAM = b'event: x\ndata: {"usage": {"input_tokens": 1, "output_tokens": 2}}\n\ndata: [DONE]\r\n\r\n'


def _split_lines(data: bytes) -> None:
    splitter, lines = wire.LineSplitter(0), []
    for at in range(0, len(data), 1000):
        lines += splitter.feed(data[at : at + 1000])
    assert splitter.seen == len(data) and b"".join(line + b"\n" for _, line in lines) == data[: splitter.consumed]


def _count_tokens(data: bytes) -> None:
    async def count(content_type: str) -> None:
        counter = token_counter.TokenCounter(ModelApi.ANTHROPIC, content_type)
        for at in range(0, len(data), 5000):
            await counter.feed(data[at : at + 5000])
        counter.get_result()

    for content_type in ("text/event-stream", "application/json"):
        asyncio.run(count(content_type))


def _find_events(data: bytes) -> None:
    """Check that the size of the pieces makes no difference."""
    found = []
    for size in (len(data) or 1, 997):
        stream = EventStream(token_counter._USAGE_MARKER, largest=1 << 20)
        events = [event for at in range(0, len(data), size) for event in stream.feed(data[at : at + size])]
        found.append(events + list(stream.finish()))
    assert found[0] == found[1]


def _receive_webhook(data: bytes) -> None:
    for content_type in ("application/json", "application/x-www-form-urlencoded"):
        deliveries.find_repository_names(content_type, data)
        deliveries.parse_payload(content_type, data)


def _check_webhook_headers(value: str) -> None:
    valid = {"X-Hub-Signature-256": f"sha256={'a' * 64}", "X-GitHub-Event": "push", "X-GitHub-Delivery": "1"}
    for name in valid:
        webhooks.check_headers({**valid, name: value})


def _read_wait(value: str) -> None:
    wait = rate_limit.parse_retry_after({"retry-after": value}, 0.0)
    assert wait is None or wait >= 0


# images, layers, backups, hosts ---------------------------------------------------------------------------------------


class DiscardingTree:
    """Takes the entries of a layer and writes nothing."""

    def __init__(self) -> None:
        self.tally = type("Tally", (), {"entries": 0, "bytes": 0, "devices": 0})()

    def create_file(self, path: str, meta: object) -> int:
        return os.open(os.devnull, os.O_WRONLY)

    def add_whiteout(self, path: str) -> bool:
        return "/.wh." in f"/{path}"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def _unpack(data: bytes) -> None:
    request = unpack.UnpackRequest("", 0, 0, None, "", 1 << 20, 1000, 0)
    tree = cast("Any", DiscardingTree())
    with open(os.memfd_create("layer"), "r+b", buffering=0) as file:  # noqa: PTH123 - a descriptor
        file.write(data)
        file.seek(0)
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        try:
            unpack._extract(Stream(file.fileno()), tree, unpack._Usage(root, request))
        finally:
            os.close(root)


def make_tar(kind: int, files: dict[str, bytes]) -> bytes:
    target_file = io.BytesIO()
    with tarfile.open(fileobj=target_file, mode="w", format=kind) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1.5
            if kind == tarfile.PAX_FORMAT:
                member.pax_headers = {"SCHILY.xattr.user.a": "b", "comment": "c"}
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "x" * 120
        tar.addfile(link)
    return target_file.getvalue().rstrip(b"\0") + bytes(1024)


def _read_backup(data: bytes) -> None:
    for content in (data, zstandard.ZstdCompressor(level=1).compress(data)):
        try:
            for member in ArchiveReader(io.BytesIO(content), []):
                assert member.mtime >= 0
        except SandyardError:
            continue


def _encrypt(content: bytes) -> bytes:
    target_file = io.BytesIO()
    with age.EncryptingWriter(target_file, [KEY.public_key]) as writer:
        writer.write(content)
    return target_file.getvalue()


KEY = age.PrivateKey.generate()
BACKUP = make_tar(
    tarfile.PAX_FORMAT,
    {
        MANIFEST: Manifest("now", "1", "sqlite", engine=True).encode(),
        "data/a": b"b",
        CHECKSUMS: b"0" * 64 + b"  data/a\n",
    },
)
TOKEN = JoinToken("192.0.2.1:3010", "a" * 64, "jt_" + "a" * 20, Secret("s")).encode().reveal().encode()
CHALLENGE = b'Bearer realm="https://auth.example/token",service="r\\"x",scope=a:b:pull, Basic realm=x'

PARSERS: dict[str, Parser] = {
    "envd stream": Parser(
        serve(_read_stream),
        (make_sized_request("", FRAMES), make_request("Transfer-Encoding: chunked\r\n", CHUNKED)),
        GUEST_ERRORS,
    ),
    "envd call": Parser(
        serve(_read_unary), (make_sized_request("Connect-Timeout-Ms: 5\r\n", b'{"processId": "12"}'),), GUEST_ERRORS
    ),
    "upload": Parser(
        serve(_read_form),
        (make_sized_request("Content-Type: multipart/form-data; boundary=b\r\n", FORM),),
        GUEST_ERRORS,
    ),
    "range": Parser(
        serve(_choose_range), tuple(make_request(f"{RANGE_HEADERS}{value}\r\n", b"") for value in RANGES), GUEST_ERRORS
    ),
    "reply of a server": Parser(_receive_reply, REPLIES, (BadReplyError,)),
    "target": Parser(
        _find_target, (b"49983-abc.example", b"8080", b"path=a&username=b&signature_expiration=1"), (SandyardError,)
    ),
    "first bytes": Parser(
        _check_hello, (TLS, b"GET / HTTP/1.1\r\nHost: a.example:80\r\n\r\n"), largest=host_detection.MAX_BYTES
    ),
    "dns question": Parser(dns_wire.parse_question, (QUESTION,)),
    "dns answer": Parser(dns_wire.parse_addresses, (ANSWER,), largest=65535),
    "forwarded for": Parser(
        lambda data: PROXIES._find_client({"headers": [(b"x-forwarded-for", data)]}),
        (b"203.0.113.9, 10.0.0.1, fd00::1",),
    ),
    "host name": Parser(
        text(lambda host: (parse_host_name(host), ADDRESSES.parse_host(host))), (b"[::1]:80", b"80-abc.preview.example")
    ),
    "diff": Parser(_parse_listing, (RAW,)),
    "patches": Parser(diff._split_patches, (PATCHES,)),
    "status": Parser(status.parse_status, (STATUS,)),
    "log": Parser(lambda data: history._parse_commits(data, 10, truncated=False), (LOG,)),
    "refs": Parser(lambda data: (list(parse_refs(data)), mirror._parse_listing(data)), (REFS,), (UnicodeDecodeError,)),
    "bundle": Parser(lambda data: bundle_import._parse_header(io.BytesIO(data)), (BUNDLE,), (SandyardError,)),
    "conflicts": Parser(
        checkout_conflicts.parse_conflicts,
        (b"CONFLICT (content): Merge conflict in a b\n\x00100644 1\ta b\x00160000 2\tc\0",),
    ),
    "sealed checkout": Parser(sandbox_git._parse_sealed, (b"1\0a\0\x002\0b\0c\0\0",)),
    "work tree": Parser(
        sandbox_git._parse_work_tree, (b"\0".join((COMMIT, OTHER, b"main", b"2", b"x", b"")),), (SandyardError,)
    ),
    "undone changes": Parser(
        sandbox_git._parse_undone, (b"\0".join((COMMIT, b"1", b"", b"a", b"")),), (SandyardError,)
    ),
    "discarded files": Parser(sandbox_git._parse_discarded, (b"?? a\0 M b\0",)),
    "commit message": Parser(
        text(lambda message: (commit_messages.parse_co_authors(message), description.parse_check(message, 0))),
        (b"feat: x\n\nbody\n\nCo-authored-by: Ada <ada@example.org>\n",),
    ),
    "ports": Parser(ports.parse, (PORTS,)),
    "files": Parser(
        lambda data: directory_pages.decode(data, 0, 10),
        (
            b'{"next": 5, "entries": [{"name": "a", "type": "FILE_TYPE_FILE", "size": "1", "modifiedTime": "2026-01-01T00:00:00Z"}]}',
        ),
        (SandyardError,),
    ),
    "relay": Parser(text(_parse_frame), (b":1 0 YWJj", b":a 1 12 0", b":x denied because")),
    "result of a command": Parser(
        text(CommandEnded.parse), (b'{"reason": "exited", "code": 1, "ms": 2, "out": 3, "err": 4}',)
    ),
    "sizes of a journal": Parser(
        text(lambda listing: channel._parse_sizes(listing, (0, 0))), (b"/x/out 12\n/y/err 5\n",)
    ),
    "lines of an agent": Parser(_split_lines, (b'{"jsonrpc": "2.0"}\n', b"\n\n")),
    "message of an agent": Parser(
        wire.parse_line, (b'{"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": "\\u00e4"}}',)
    ),
    "tokens of a model": Parser(_count_tokens, (STREAM,)),
    "events of a model": Parser(_find_events, (STREAM,)),
    "events of the platform": Parser(
        text(lambda data: list(sse.parse(sse.split_lines([data[:9], data[9:]])))),
        (b"id: 1\nevent: x\r\ndata: {}\r\n\r\n",),
    ),
    "json": Parser(
        lambda data: bounded_json.parse(data, largest=1 << 20, values=1000),
        (b'{"a": [1, "\\u00e4", null]}',),
        (ValueError,),
    ),
    "webhook": Parser(
        _receive_webhook,
        (
            b'{"repository": {"full_name": "acme/site"}}',
            b"payload=%7B%22repository%22%3A+%7B%22full_name%22%3A+%22acme%2Fsite%22%7D%7D",
        ),
        (SandyardError,),
    ),
    "headers of a webhook": Parser(text(_check_webhook_headers), (b"push", b"72d3162e-cc78-11e3"), (SandyardError,)),
    "pages of the forge": Parser(
        text(github_connection._parse_linked_pages),
        (b'<https://api.github.com/x?page=2>; rel="next", <https://x/?page=9>; rel="last"',),
    ),
    "time to wait": Parser(text(_read_wait), (b"120", b"Thu, 01 Jan 2026 00:00:00 GMT"), largest=8 << 10),
    "devcontainer": Parser(
        text(lambda config: devcontainer.parse("x", config, "base")),
        (b'{"postCreateCommand": ["a", "b"], // x\n "containerEnv": {"A": "b"}, "features": {"x": 1},}',),
    ),
    "cron": Parser(
        text(lambda line: cron.get_next_time(line, "Europe/Berlin", NOW)),
        (b"*/5 0-6,8 1 * MON-FRI", b"0 0 L 2 6#3"),
        (SandyardError,),
        100,
    ),
    "time zone": Parser(text(cron.parse_zone), (b"Europe/Berlin",), (SandyardError,)),
    "layer": Parser(
        _unpack,
        tuple(make_tar(kind, {"a/b": b"c", "d" * 200: b"e"}) for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)),
        # `_write_tree` turns the others into a LayerError
        (LayerError, OSError, tarfile.TarError, ValueError, RecursionError, MemoryError, OverflowError),
    ),
    "image name": Parser(text(reference.parse), (b"docker.io/library/a:1", b"oci:/images/a:1"), (SandyardError,)),
    "challenge of a registry": Parser(
        text(lambda header: [auth._parse_realm(c.parameters.get("realm", "")) for c in auth.parse_challenges(header)]),
        (CHALLENGE,),
    ),
    "backup": Parser(_read_backup, (BACKUP,)),
    "encrypted file": Parser(
        lambda data: age.DecryptingReader(io.BytesIO(data), [KEY]).read(), (_encrypt(b"abc"),), (SandyardError,)
    ),
    "message of a host": Parser(
        cluster.parse_result, (b'{"ok": 1}', b'{"error": ["ConflictError", "x"]}'), (SandyardError,)
    ),
    "join token": Parser(text(JoinToken.parse), (TOKEN,), (SandyardError,)),
    "certificate request": Parser(
        text(read_certificate_request),
        (b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",),
        (SandyardError,),
    ),
}
"""By what they parse."""
