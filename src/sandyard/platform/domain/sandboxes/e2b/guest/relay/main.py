"""The operations of the relay, and its command line."""

import binascii
import os
import sys
import time

from sandyard.platform.domain.sandboxes.e2b.guest.relay.command import HEARTBEAT, RelayedCommand
from sandyard.platform.domain.sandboxes.e2b.guest.relay.journal import (
    FULL,
    claim,
    claim_spare,
    find_journal,
    get_relay_pid,
    has_started,
    is_open_file,
    list_journal_folders,
    read_result,
    write_file,
)
from sandyard.platform.domain.sandboxes.e2b.guest.relay.output import CHUNK, LIVE_LIMIT, encode, fetch_line, write_line
from sandyard.platform.domain.sandboxes.e2b.guest.relay.signals import signal

FOLLOW_INTERVAL = 0.05
FOLLOW_LONGEST = 600.0
ORPHAN_GRACE = 2.0


def start(spec: "list[str]") -> None:
    if spec[2]:
        try:
            os.chdir(spec[2])
        except OSError as error:
            write_line(":f cwd " + encode(error.strerror or ""))
            return
    try:
        folder = claim(spec[0])
        if folder is None:
            write_line(":x")
            follow(spec[0], 0, 0)
            return
        try:
            relay = RelayedCommand(spec, folder, folder == list_journal_folders(spec[0])[1])
        except OSError as error:
            if error.errno not in FULL:
                raise
            relay = RelayedCommand(spec, claim_spare(spec[0], error), True)
    except OSError as error:
        write_line((":f full " if error.errno in FULL else ":f broken ") + encode(str(error)))
        return
    relay.run()


class JournalTail:
    """One file of a journal, and how much of it was sent."""

    def __init__(self, number: int, name: str, offset: int) -> None:
        self.number = number
        self.name = name
        self.offset = offset
        self.fd: "int | None" = None

    def send_new(self, folder: str) -> None:
        if self.fd is None:
            try:
                self.fd = os.open(os.path.join(folder, self.name), os.O_RDONLY)
            except OSError:
                return
        size = os.fstat(self.fd).st_size
        if size - self.offset > LIVE_LIMIT and is_open_file(os.path.join(folder, self.name), self.fd):
            self.offset = size
            write_line(fetch_line(self.number, size, folder))
        while self.offset < size:
            data = os.pread(self.fd, min(CHUNK, size - self.offset), self.offset)
            if not data:
                return
            write_line(":%d %d %s" % (self.number, self.offset, binascii.b2a_base64(data).decode("ascii").strip()))
            self.offset += len(data)


def follow(name: str, out: int, err: int) -> None:
    """Send the journal from these offsets on until the command has ended."""
    began = beat = seen = time.monotonic()
    files = [JournalTail(1, "out", out), JournalTail(2, "err", err)]
    while True:
        folder = find_journal(name)
        result = None
        alive = False
        if folder is not None:
            alive = get_relay_pid(folder) is not None
            result = read_result(name)
            for file in files:
                file.send_new(folder)
        now = time.monotonic()
        if result is not None:
            write_line(":e " + result)
            return
        if folder is None:
            write_line(':e {"reason":"not_started"}')
            return
        if alive:
            seen = now
        elif os.path.exists(os.path.join(folder, "claimed")):
            write_line(':e {"reason":"not_started"}')
            return
        elif now - seen > ORPHAN_GRACE:
            write_line(':e {"reason":"%s"}' % ("lost" if has_started(folder) else "not_started"))
            return
        if now - began > FOLLOW_LONGEST:
            write_line(":a")
            return
        if now - beat > HEARTBEAT:
            beat = now
            write_line(":h")
        time.sleep(FOLLOW_INTERVAL)


def prevent_start(name: str) -> None:
    folder = claim(name)
    if folder is not None:
        write_file(os.path.join(folder, "claimed"), b"")
    write_line(":r " + ("yes" if folder is not None else "no"))


def kill(name: str) -> None:
    until = time.monotonic() + ORPHAN_GRACE
    while True:
        folder = find_journal(name)
        pid = folder and get_relay_pid(folder)
        if pid != 0 or time.monotonic() > until:  # 0: it is about to start
            break
        time.sleep(0.02)
    if pid:
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError:
            pid = None
    write_line(":r " + ("yes" if pid else "no"))


def forget(names: "list[str]") -> None:
    for folder in [folder for name in names for folder in list_journal_folders(name)]:
        try:
            for entry in os.listdir(folder):
                os.unlink(os.path.join(folder, entry))
            os.rmdir(folder)
        except OSError:
            pass
    write_line(":r yes")


def read_spec(arguments: "list[str]") -> "list[str]":
    if arguments:
        with open(arguments[0], "rb") as file:
            raw = file.read()
        os.unlink(arguments[0])
    else:
        raw = binascii.a2b_base64(os.environ["SANDYARD_SPEC"])
    return raw.decode("utf-8", "surrogateescape").split("\0")


def main(arguments: "list[str]") -> None:
    mark, verb, arguments = arguments[0], arguments[1], arguments[1:]
    write_line("\n:: " + mark)
    if verb == "start":
        start(read_spec(arguments[1:]))
    elif verb == "follow":
        follow(arguments[1], int(arguments[2]), int(arguments[3]))
    elif verb == "forget":
        forget(arguments[1:])
    else:
        {"claim": prevent_start, "kill": kill}[verb](arguments[1])


if __name__ == "__main__":
    main(sys.argv[1:])
