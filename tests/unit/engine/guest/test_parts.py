"""Parts of the guest agent that need no process: event loop, accounts, output buffers, encodings and messages."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandyard.engine.guest.config import GuestConfig
from sandyard.engine.guest.files import encoding
from sandyard.engine.guest.files.multipart import Part, parse_boundary
from sandyard.engine.guest.files.watch import Watch
from sandyard.engine.guest.loop import Loop, Timer
from sandyard.engine.guest.process import output
from sandyard.engine.guest.process.output import Budget, End, Output
from sandyard.engine.guest.process.process import Process, describe_exit
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.users import Accounts, UnknownUserError
from sandyard.engine.guest.wire import protojson
from sandyard.engine.guest.wire.connect import ServerStream
from sandyard.engine.guest.wire.connection import Connection, PeerGoneError
from sandyard.engine.guest.wire.http1 import Exchange, HttpError, read_request

# the loop ------------------------------------------------------------------------------------------------------------


def test_coroutines_timers_and_timeouts_run_on_the_loop() -> None:
    loop = Loop()
    order: list[object] = []

    async def main() -> str:
        loop.call_later(0.02, order.append, "later")
        loop.call_later(0.01, order.append, "never").cancel()
        loop.call_soon(order.append, "soon")
        event = asyncio.Event()
        loop.call_later(0.03, event.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(10)
        await event.wait()
        return "done"

    assert loop.run(main()) == "done"
    assert order == ["soon", "later"]
    loop.close()


def test_a_failing_callback_does_not_stop_the_loop(capfd: pytest.CaptureFixture[str]) -> None:
    loop = Loop()

    def fail() -> None:
        raise ValueError("mine")

    async def main() -> None:
        loop.call_soon(fail)
        reading, writing = os.pipe()
        loop.add_reader(reading, fail)
        os.write(writing, b"x")
        await asyncio.sleep(0.02)
        loop.remove_reader(reading)
        os.close(reading)
        os.close(writing)

    loop.run(main())
    loop.close()
    assert "ValueError: mine" in capfd.readouterr().err


def test_cancelled_timers_are_discarded() -> None:
    loop = Loop()

    async def main() -> None:
        for _ in range(5000):
            loop.call_later(1000, print).cancel()
            await asyncio.sleep(0)
        assert len(loop.scheduled) < 1000

    loop.run(main())
    loop.close()


def test_a_descriptor_can_have_a_reader_and_a_writer() -> None:
    loop = Loop()
    ours, theirs = socket.socketpair()
    events: list[str] = []

    async def main() -> None:
        loop.add_reader(ours.fileno(), lambda: events.append("read") or loop.remove_reader(ours.fileno()))
        loop.add_writer(ours.fileno(), lambda: events.append("write") or loop.remove_writer(ours.fileno()))
        await asyncio.sleep(0.01)
        theirs.send(b"x")
        await asyncio.sleep(0.01)
        assert not loop.remove_reader(ours.fileno())

    loop.run(main())
    assert events == ["write", "read"]
    loop.close()
    ours.close()
    theirs.close()


def test_a_descriptor_that_the_kernel_reports_after_its_removal_does_not_keep_the_loop_busy() -> None:
    """gVisor does so after a restore. Linux does so while the file is open under another number."""
    readable, other = os.pipe()
    os.write(other, b"x")
    loop = Loop()
    loop.add_reader(readable, lambda: None)
    duplicate = os.dup(readable)
    os.close(readable)
    with contextlib.suppress(OSError):
        loop.remove_reader(readable)
    near, far = socket.socketpair()
    received: list[bytes] = []

    async def main() -> None:
        loop.add_reader(near.fileno(), lambda: received.append(near.recv(10)))
        await asyncio.sleep(0.01)
        started = time.process_time()
        await asyncio.sleep(0.2)
        assert time.process_time() - started < 0.1
        far.send(b"hello")
        while not received:
            await asyncio.sleep(0)

    loop.run(main())
    loop.close()
    assert received == [b"hello"]
    near.close()
    far.close()
    os.close(duplicate)
    os.close(other)


@pytest.mark.parametrize("is_silent", [True, False])
def test_events_that_an_epoll_does_not_report_are_found_with_another_one(
    monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    """After a restore, an epoll of gVisor sometimes never reports a descriptor again, with or without events of others."""
    waits: list[float] = []
    near, far = socket.socketpair()
    other, _ = pair = socket.socketpair()
    far.send(b"hello")

    class BrokenEpoll:
        def __init__(self) -> None:
            self.descriptors: list[int] = []

        def register(self, fd: int, events: int) -> None:
            self.descriptors.append(fd)

        def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
            waits.append(timeout)
            time.sleep(timeout)
            return [(fd, select.EPOLLIN) for fd in self.descriptors if fd == other.fileno() and not is_silent]

        def close(self) -> None: ...

    epolls: Iterator[object] = itertools.chain([BrokenEpoll()], iter(select.epoll, None))
    monkeypatch.setattr("sandyard.engine.guest.loop.select.epoll", lambda: next(epolls))
    loop = Loop(max_wait_s=0.001)

    async def main() -> bytes:
        received = loop.create_future()
        loop.add_reader(other.fileno(), lambda: None)
        loop.add_reader(near.fileno(), lambda: received.done() or received.set_result(near.recv(10)))
        async with asyncio.timeout(10):
            return await received

    assert loop.run(main()) == b"hello"
    assert waits and max(waits) <= 0.001
    loop.close()
    for sock in (near, far, *pair):
        sock.close()


def test_a_connection_is_read_until_it_times_out_or_closes() -> None:
    loop = Loop()
    ours, theirs = socket.socketpair()
    conn = Connection(loop, ours)

    async def main() -> None:
        theirs.sendall(b"one\r\ntwo\r\nrest")
        assert await conn.take_until(b"\r\n", 100, 1) == b"one\r\n"
        assert await conn.take_until(b"\r\n", 3, 1) is None
        view = memoryview(bytearray(7))
        assert await conn.receive_into(view, 1) == 7
        assert bytes(view) == b"two\r\nre"
        assert conn.take(10) == b"st"
        started = time.monotonic()
        with pytest.raises(PeerGoneError):
            await conn.fill(0.05)
        assert time.monotonic() - started >= 0.04
        theirs.close()
        assert not await conn.fill(1)
        with pytest.raises(PeerGoneError):
            await conn.send(bytes(10_000_000))

    loop.run(main())
    conn.close()
    loop.close()


class PreemptedLoop(Loop):
    """A loop whose process loses the CPU for `lost_s` after setting a timer."""

    lost_s = 0.0

    def call_at(self, when: float, callback: Callable[..., object], *args: object, context: object = None) -> Timer:
        timer = super().call_at(when, callback, *args)
        time.sleep(self.lost_s)
        return timer


def test_a_quiet_stream_starts_when_its_delay_is_over() -> None:
    loop = PreemptedLoop()
    ours, theirs = socket.socketpair()
    theirs.settimeout(0)
    conn = Connection(loop, ours)

    async def main() -> None:
        theirs.sendall(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        request = await read_request(conn)
        assert request is not None
        stream = ServerStream(Exchange(conn, request), b"{}", None)
        loop.lost_s = 0.1
        await stream.begin(b"first", 0.15)
        loop.lost_s = 0.0
        waiting = loop.create_task(stream.wait())
        arrived: asyncio.Future[None] = loop.create_future()
        loop.add_reader(theirs.fileno(), lambda: arrived.done() or arrived.set_result(None))
        async with asyncio.timeout(10):
            await arrived
        assert b"first" in theirs.recv(1000)
        stream.wake()
        await waiting
        stream.release()

    loop.run(main())
    conn.close()
    theirs.close()
    loop.close()


def test_a_file_deleted_during_a_directory_scan_hides_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    events: list[str] = []
    watch = Watch(
        loop,
        Sandbox(GuestConfig()),
        str(tmp_path),
        recursive=True,
        include_entry=False,
        on_event=lambda event: events.append(event["name"]),
        on_error=pytest.fail,
    )
    (tmp_path / "new/folder").mkdir(parents=True)
    (tmp_path / "new/brief").write_text("x")
    (tmp_path / "new/folder/deep").touch()
    scan = os.scandir

    def scan_and_delete(path: str) -> list[os.DirEntry[str]]:
        entries = list(scan(path))
        (tmp_path / "new/brief").unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(os, "scandir", scan_and_delete)
    watch.read_events()
    watch.close()
    loop.close()
    assert {"new", "new/folder", "new/folder/deep"} <= set(events)


# accounts ------------------------------------------------------------------------------------------------------------


def test_accounts_are_read_from_passwd_and_group(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\n# comment\nuser:x:1000:100::/home/user:\nbroken\nbad:x:y:z::/:/\n"
        "second:x:1000:1:same number:/:/bin/sh\n"
    )
    (tmp_path / "group").write_text("users:x:100:\nadm:x:4:user,second\nusers:x:100:user\nshort:x\n")
    accounts = Accounts(str(tmp_path))
    user = accounts.lookup("user")
    assert (user.uid, user.gid, user.home, user.shell, user.groups) == (1000, 100, "/home/user", "/bin/sh", (100, 4))
    assert (accounts.get_user_name(1000), accounts.get_user_name(5)) == ("user", "5")
    assert (accounts.get_group_name(4), accounts.get_group_name(77)) == ("adm", "77")
    with pytest.raises(UnknownUserError, match="unknown user bad"):
        accounts.lookup("bad")
    (tmp_path / "passwd").write_text("only:x:7:7::/o:/bin/sh\n")
    assert accounts.lookup("only").uid == 7
    with pytest.raises(UnknownUserError):
        accounts.lookup("user")
    (tmp_path / "passwd").unlink()
    with pytest.raises(UnknownUserError):
        accounts.lookup("only")


def test_accounts_belong_to_the_caller_without_root(tmp_path: Path) -> None:
    accounts = Accounts(str(tmp_path), owned_by_caller=True)
    assert accounts.lookup("user").uid == accounts.lookup("root").uid == os.getuid()
    assert accounts.lookup("user").home == "/home/user"


@pytest.mark.parametrize("number", ["\u00b2", "4294967295", "9" * 5000])
def test_accounts_with_an_invalid_id_are_ignored(tmp_path: Path, number: str) -> None:
    (tmp_path / "passwd").write_text(f"bad:x:{number}:1::/:/bin/sh\nuser:x:1000:100::/home/user:\n")
    (tmp_path / "group").write_text(f"bad:x:{number}:user\nadm:x:4:user\n")
    accounts = Accounts(str(tmp_path))
    assert accounts.lookup("user").groups == (100, 4)
    with pytest.raises(UnknownUserError):
        accounts.lookup("bad")


def test_a_pipe_or_a_huge_file_in_place_of_an_account_file_does_not_block_the_agent(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("user:x:1000:100::/home/user:\n")
    accounts = Accounts(str(tmp_path))
    assert accounts.lookup("user").uid == 1000
    (tmp_path / "passwd").unlink()
    os.mkfifo(tmp_path / "passwd")
    with (tmp_path / "group").open("w") as file:
        file.truncate(1 << 40)
    looking = threading.Thread(target=accounts.refresh, daemon=True)  # a blocked one must not block the tests
    looking.start()
    looking.join(5)
    assert not looking.is_alive()
    assert accounts.lookup("user").uid == 1000, "while a file cannot be read, its previous content applies"


# output --------------------------------------------------------------------------------------------------------------


def do_nothing() -> None:
    pass


def drain(reader: output.Reader) -> list[output.Chunk]:
    chunks = []
    while (chunk := reader.take()) is not None:
        chunks.append(chunk)
    return chunks


def test_output_is_delivered_once_and_in_order() -> None:
    kept = Output(Budget(), do_nothing)
    kept.feed("stdout", b"a")
    kept.feed("stdout", b"b")
    kept.feed("stderr", b"c")
    kept.finish(End(0, True, "exit status 0"))
    reader = kept.attach(do_nothing)
    assert reader.end is None
    assert drain(reader) == [("stdout", b"ab"), ("stderr", b"c")]
    assert reader.end is not None
    kept.detach(reader)
    assert drain(kept.attach(do_nothing)) == []


def test_output_that_a_reader_returned_goes_to_the_next_reader() -> None:
    kept = Output(Budget(), do_nothing)
    first = kept.attach(do_nothing)
    for number in range(5):
        kept.feed("stdout", b"%d" % number * 5000)
    taken = [first.take() for _ in range(3)]
    first.give_back([chunk for chunk in taken[1:] if chunk is not None])
    kept.detach(first)
    assert [data[:1] for _, data in drain(kept.attach(do_nothing))] == [b"1", b"2", b"3", b"4"]


def test_congestion_ends_when_the_reader_takes_output_or_detaches() -> None:
    relieved: list[bool] = []
    kept = Output(Budget(), lambda: relieved.append(True))
    reader = kept.attach(do_nothing)
    while not kept.congested:
        kept.feed("stdout", bytes(10_000))
    while not relieved:
        assert reader.take() is not None
    assert reader.size <= output.LOW_WATER
    while not kept.congested:
        kept.feed("stdout", bytes(10_000))
    relieved.clear()
    kept.detach(reader)
    assert relieved


@pytest.mark.parametrize("size", [1, 100, 60_000])
def test_buffered_output_is_limited_per_process_and_in_total(size: int) -> None:
    budget = Budget(limit=3 << 20)
    outputs = [Output(budget, do_nothing) for _ in range(8)]
    for item in outputs:
        for _ in range(2 * output.BACKLOG_LIMIT // size if size > 1 else 100_000):
            item.feed("stdout", b"x" * size)
    assert budget.used <= budget.limit + len(outputs) * (output.BACKLOG_TAIL + size + 5000)
    for item in outputs:
        item.drop()
    assert budget.used == 0


@pytest.mark.parametrize(("status", "text", "code"), [(0, "exit status 0", 0), (5 << 8, "exit status 5", 5)])
def test_exit_statuses_are_described(status: int, text: str, code: int) -> None:
    end = describe_exit(status)
    assert (end.status, end.exit_code, end.exited) == (text, code, True)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (9, "signal: killed"),
        (15, "signal: terminated"),
        (2, "signal: interrupt"),
        (6 | 0x80, "signal: aborted (core dumped)"),
    ],
)
def test_signals_are_described(number: int, text: str) -> None:
    end = describe_exit(number)
    assert (end.status, end.error, end.exit_code) == (text, text, -1)


def test_output_of_an_ended_process_is_complete_although_its_notification_was_lost() -> None:
    """As in gVisor. Another process keeps the pipe open, so there is no end of file."""
    loop, ended = Loop(), asyncio.Event()
    process = Process(loop, 1 << 22, config={}, tag=None, budget=Budget(), on_end=lambda _: ended.set())
    reading, writing = os.pipe()

    async def main() -> None:
        process.read_output(reading, "stdout")
        loop.remove_reader(reading)
        loop.add_reader(reading, lambda: None)  # the notification that leads nowhere
        os.write(writing, b"last words")
        process.set_exit_status(0)
        await ended.wait()

    loop.run(main())
    os.close(writing)
    assert process.output.attach(lambda: None).take() == ("stdout", b"last words")


# encodings and messages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "expected_encoding"),
    [
        ("", "identity"), ("gzip", "gzip"), ("GZIP;q=0.5", "gzip"), ("gzip, deflate, br", "identity"),
        ("*", "identity"),
        ("gzip;q=0", "identity"), ("gzip;q=1, identity;q=0.5", "gzip"), ("identity, gzip;q=0.5", "identity"),
        ("identity;q=0, *", "gzip"), ("gzip;q=1,*;q=0", "gzip"), ("br", "identity"), ("gzip;q=x", "gzip"),
    ],
)  # fmt: skip
def test_the_preferred_encoding_is_chosen(header: str, expected_encoding: str) -> None:
    assert encoding.choose_encoding({"accept-encoding": header}) == expected_encoding


@pytest.mark.parametrize("header", ["identity;q=0", "*;q=0", "br, *;q=0", "gzip;q=0, identity;q=0"])
def test_an_unacceptable_encoding_is_rejected(header: str) -> None:
    with pytest.raises(HttpError) as failure:
        encoding.choose_encoding({"accept-encoding": header})
    assert failure.value.status == 406


@pytest.mark.parametrize(
    ("disposition", "name", "filename"),
    [
        ('form-data; name="file"; filename="/a/b c.txt"', "file", "/a/b c.txt"),
        ("form-data; name=file; filename=plain", "file", "plain"),
        ('form-data; name="file"; filename="a\\"b\\\\c"', "file", 'a"b\\c'),
        ('form-data; name="file"; filename="C:\\dir\\x"', "file", "C:\\dir\\x"),
        ("form-data; name=\"file\"; filename*=utf-8''%E6%96%87", "file", "\u6587"),
        ('form-data; name="file"; filename="\u00c3\u00bc"', "file", "\u00fc"),  # UTF-8 read as Latin-1
        ('form-data; name="a;b"', "a;b", None),
        ("form-data", "", None),
    ],
)
def test_multipart_names_and_filenames_are_parsed(disposition: str, name: str, filename: str | None) -> None:
    part = Part(f"X-Other: 1\r\nContent-Disposition: {disposition}\r\nContent-Type: text/plain")
    assert (part.name, part.filename) == (name, filename)


def test_multipart_boundaries_are_parsed() -> None:
    assert parse_boundary('multipart/form-data; charset=x; boundary="a b"') == "a b"
    assert parse_boundary("multipart/form-data; boundary=abc") == "abc"
    assert parse_boundary("multipart/form-data") is None


def test_message_fields_are_read_and_validated() -> None:
    message = {"include_entry": True, "watcherId": "w", "pid": "7", "b": "-_8", "f": 3.0, "none": None}
    assert protojson.get_flag(message, "includeEntry") is True
    assert protojson.get_text(message, "watcherId") == "w"
    assert protojson.get_uint32(message, "pid") == 7
    assert protojson.get_uint32(message, "f") == 3
    assert protojson.get_bytes(message, "b") == b"\xfb\xff"
    assert (
        protojson.get_text(message, "none"),
        protojson.get_uint32(message, "x"),
        protojson.get_texts(message, "x"),
    ) == (
        "",
        0,
        [],
    )
    invalid: list[tuple[Callable[..., object], object]] = [
        (protojson.get_text, 1), (protojson.get_flag, "true"), (protojson.get_uint32, -1), (protojson.get_uint32, True),
        (protojson.get_uint32, 1 << 32), (protojson.get_message, []), (protojson.get_texts, ["a", 1]),
        (protojson.get_text_map, {"a": 1}),
        (protojson.get_bytes, "a"), (protojson.get_bytes, "\u00fc"),
    ]  # fmt: skip
    for read, value in invalid:
        with pytest.raises(protojson.FieldError):
            read({"field": value}, "field")


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (0, "1970-01-01T00:00:00Z"), (1_500_000_000, "1970-01-01T00:00:01.500Z"),
        (1_000, "1970-01-01T00:00:00.000001Z"),
        (1, "1970-01-01T00:00:00.000000001Z"), (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)  # fmt: skip
def test_timestamps_are_formatted(nanoseconds: int, expected: str) -> None:
    assert protojson.format_timestamp(nanoseconds) == expected
