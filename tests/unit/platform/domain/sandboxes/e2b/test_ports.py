"""Parse the listening ports of a sandbox. The acceptance tests use sandboxes that really listen."""

from __future__ import annotations

import pytest

from sandyard.platform.domain.sandboxes.e2b.ports import LISTED, Listener, parse


def line(address: str, port: int, inode: int, state: str = "0A") -> str:
    return f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0 100 0 0 10 0"


TABLE = [
    line("0100007F", 3000, 11),
    line("00000000", 8000, 12),
    line("00000000000000000000000000000000", 8080, 13),
    line("00000000000000000000000001000000", 3001, 14),
    line("0000000000000000FFFF00000100007F", 3002, 15),
    line("0100007F", 4000, 16, state="01"),
    line("0100007F", 4100, 17),
    line("00000000", 49983, 18),
    line("1500FEA9", 3000, 19),
]
FILES = """::files
/proc/7/fd:
lrwx------ 1 user user 64 Jan  1 00:00 3 -> socket:[11]
/proc/8/fd:
lrwx------ 1 user user 64 Jan  1 00:00 3 -> 'socket:[99]'
lrwx------ 1 user user 64 Jan  1 00:00 4 -> socket:[12]
/proc/9/fd:
lrwx------ 1 user user 64 Jan  1 00:00 4 -> socket:[17]
"""
LINES = (
    "::lines\n==> /proc/7/cmdline <==\n/usr/bin/node\0server.js\0--token=secret\0\n"
    "==> /proc/8/cmdline <==\nnext-server (v15)\0\n"
    "==> /proc/9/cmdline <==\n/usr/bin/python3\0-I\0-S\0/tmp/.sandyard/tunnel-0123-1000.py\0mark\0"
)


def test_parses_complete_output() -> None:
    output = "\n".join([*TABLE, FILES + LINES]).encode()
    assert parse(output) == [
        Listener(3000, "127.0.0.1", "node"),
        Listener(3001, "::1", None),
        Listener(3002, "127.0.0.1", None),
        Listener(8000, "0.0.0.0", "next-server (v15)"),
        Listener(8080, "::", None),
    ]


def test_programs_missing_in_sandbox() -> None:
    output = "\n".join([*TABLE[:2], "::files", "::lines", ""]).encode()
    assert parse(output) == [Listener(3000, "127.0.0.1", None), Listener(8000, "0.0.0.0", None)]


def test_returns_widest_address_of_port() -> None:
    output = "\n".join([line("0100007F", 80, 11), line("00000000", 80, 55), FILES + LINES]).encode()
    assert parse(output) == [Listener(80, "0.0.0.0", "node")]


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"\xff\xfe::files\n::lines\n",
        b"::lines\n::files\n",
        line("XYZ", 3000, 1).encode(),
        line("0100", 3000, 1).encode(),
        b"0: 0100007F:GGGG 0 0A 0 0 0 0 0 1",
        b"0: 0100007F 0 0A 0 0 0 0 0 x",
        b"0: 0100007F:-1 0 0A 0 0 0 0 0 1",
        b"0: 0100007F:10000 0 0A 0 0 0 0 0 1",
        b"0: 0100007F:" + b"F" * 9000 + b" 0 0A 0 0 0 0 0 1",
        b"::files\n/proc/99999999999999999999/fd:\nsocket:[1]\n::lines\n==> /proc/x/cmdline <==\n",
    ],
)
def test_ignores_invalid_output(output: bytes) -> None:
    assert parse(output) == []


def test_sanitizes_process_names() -> None:
    odd = "::lines\n==> /proc/7/cmdline <==\n/bin/\x1b[31mred\u202e" + "x" * 200 + "\0"
    [listener] = parse("\n".join([TABLE[0], FILES + odd]).encode())
    assert listener.process is not None
    assert "\x1b" not in listener.process
    assert len(listener.process) <= 60


def test_limits_number_of_ports() -> None:
    output = "\n".join(line("0100007F", port, port) for port in range(1, 3000)).encode()
    assert len(parse(output)) == LISTED
