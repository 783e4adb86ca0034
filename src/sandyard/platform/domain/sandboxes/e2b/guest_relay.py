"""Relay, which runs inside a sandbox: starts a command, stores its output in a journal, and forwards it as it arrives.

    python3 -I -S guest_relay.py MARK start [SPEC FILE] | follow ID OUT ERR | claim ID | kill ID | forget ID…

Standard library only, Python 3.6 or newer, and few imports, because it starts for every command. The journal of a
command is the directory `commands/ID`. Creating the directory claims the command, which can happen only once. It
contains `lock` (held by the relay while it lives, with its pid once the command is about to start), `out` and `err`
(the output), `exit` (the result, written atomically) and `claimed` (created by a caller who wants to make sure that the
command never starts).

The relay prints lines: `:s PID` started, `:x` was started before, `:1 OFFSET BASE64` and `:2 …` output,
`:b STREAM END BASE` output to fetch from the journal (the stream's file has grown to END bytes; BASE is an index into
BASES), `:e JSON` the result, `:h` heartbeat, `:r WORD` an answer, `:f WORD BASE64` a failure, `:a` ask again.
Everything before the line `:: MARK` is output of login shells and is ignored.
"""

# Old Pythons, plain os calls, and no module more than it needs: a command waits for this to start.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH110, PTH112, PTH115, PTH116, PTH118, PTH123, PTH208
# ruff: noqa: B905, S103, S108, S606, SIM105, TRY301, UP031, UP037

import binascii
import errno
import fcntl
import os
import select
import sys
import time

try:
    import _signal as signal  # type: ignore[import-not-found] # without the enumerations, which take longer to load than everything else
except ImportError:
    import signal

BASES = ("/tmp/.sandyard", "/dev/shm/.sandyard")  # the second one is used when the disk is full
SPARE_LIMIT = 16 << 20  # limit of output in the second one, which is in memory
CHUNK = 48 << 10
LIVE_LIMIT = 512 << 10  # of a stream's output is sent in lines per interval; the reader fetches more from the journal
LIVE_INTERVAL = 0.05  # also the minimum time between two requests to fetch
PIPE_SIZE = 256 << 10
GRACE = 3.0  # between SIGTERM and SIGKILL
QUIET = 0.15  # children that keep the output open may add to it until it has been quiet for this long
LONGEST = 2.0  # but no longer than this
HEARTBEAT = 10.0
FROZEN = 2.0  # a wait that took this much longer than requested was a pause of the sandbox
FOLLOW_INTERVAL = 0.05
LOOK_INTERVAL = 0.2
RUN_VARIABLE = "SANDYARD_RUN"  # in the environment of an agent and of everything it starts
SWEEP_GRACE = 2.0  # between SIGTERM and SIGKILL for leftover processes
SWEEP_LONGEST = 10.0
FOLLOW_LONGEST = 600.0
ORPHAN_GRACE = 2.0
EXIT_PATIENCE = 60.0
SOURCE_LIMIT = 100 << 10  # a longer command does not fit into an argument
F_SETPIPE_SZ = 1031  # in fcntl since Python 3.10
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
PRIVATE = ("SANDYARD_SPEC", "SANDYARD_RELAY")


def encoded(text: str) -> str:
    return binascii.b2a_base64(text.encode("utf-8", "surrogateescape")).decode("ascii").strip()


def say(line: str) -> None:
    data = line.encode("ascii") + b"\n"
    while data:
        data = data[os.write(1, data) :]


def fetch_line(number: int, end: int, folder: str) -> str:
    return ":b %d %d %d" % (number, end, 0 if folder.startswith(BASES[0]) else 1)


def is_open_file(path: str, fd: int) -> bool:
    """Return whether the path still names this open file. False if it was removed or replaced."""
    try:
        found, opened = os.stat(path), os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


def folders(name: str) -> "list[str]":
    return [os.path.join(base, "commands", name) for base in BASES]


def make_base(base: str) -> None:
    for path in (base, os.path.join(base, "commands")):
        try:
            os.mkdir(path)
        except FileExistsError:
            pass
        try:
            if os.stat(path).st_mode & 0o7777 != 0o1777:
                os.chmod(path, 0o1777)
        except OSError:
            pass  # it belongs to another user, who has done this already


def claim(name: str) -> "str | None":
    """Create the journal's directory. None if it exists already. Raises OSError if there is no space for it anywhere."""
    first, second = folders(name)
    if os.path.isdir(second):
        return None
    try:
        make_base(BASES[0])
        os.mkdir(first, 0o755)
    except FileExistsError:
        return None
    except OSError as error:
        if error.errno not in FULL:
            raise
        path, other = claim_spare(name, error), first
    else:
        path, other = first, second
    return None if os.path.isdir(other) else path  # two at once, one in each place: then neither has it


def claim_spare(name: str, reason: OSError) -> str:
    """Create the journal's directory in memory because of `reason`, which is raised if that fails too."""
    try:
        make_base(BASES[1])
        os.mkdir(folders(name)[1], 0o755)
    except OSError:
        raise reason from None
    return folders(name)[1]


def write_file(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


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

    def wants(self) -> bool:
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


class Live:
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

    def behind(self, streams: "list[Stream]") -> bool:
        return not self.gone and (bool(self.buffer) or any(stream.sent < stream.total for stream in streams))


class Relay:
    def __init__(self, spec: "list[str]", folder: str, spare: bool) -> None:
        self.name, self.command, self.cwd, timeout = spec[0], spec[1], spec[2], float(spec[3] or 0)
        self.variables = [pair.split("=", 1) for pair in spec[4:]]
        self.folder = folder
        self.timeout = timeout
        self.lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        limit = SPARE_LIMIT if spare else None
        self.streams = [Stream(1, "out", folder, limit), Stream(2, "err", folder, limit)]
        if len(self.command.encode("utf-8", "surrogateescape")) > SOURCE_LIMIT:
            write_file(os.path.join(folder, "command"), self.command.encode("utf-8", "surrogateescape"))
        os.write(self.lock, b"%d\n" % os.getpid())
        self.status = 0
        self.why = ""  # "timed_out" or "killed", once it is being ended
        self.kill_at = 0.0
        self.terminated = False

    def argv(self) -> "list[str]":
        if len(self.command.encode("utf-8", "surrogateescape")) > SOURCE_LIMIT:
            return ["/bin/bash", "-l", "-c", 'source "$0"', os.path.join(self.folder, "command")]
        return ["/bin/bash", "-l", "-c", self.command]

    def spawn(self) -> int:
        env = {key: value for key, value in os.environ.items() if key not in PRIVATE and key != "_"}
        env.update((name, value) for name, value in self.variables)
        argv = self.argv()
        pid = os.fork()
        if pid:
            for stream in self.streams:
                os.close(stream.child_end)
            return pid
        try:
            os.setsid()
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for stream in self.streams:
                os.dup2(stream.child_end, stream.number)
            os.execve(argv[0], argv, env)
        except BaseException as error:
            os.write(2, ("%s: %s\n" % (argv[0], error)).encode("utf-8", "replace"))
        finally:
            os._exit(127)

    def run(self) -> None:
        wake, wake_write = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_terminate)
        self.began = time.monotonic()
        try:
            self.pid = self.spawn()
        except OSError as error:  # no process could be started
            self.keep('{"reason":"not_started"}')
            say(":f processes " + encoded(error.strerror or ""))
            return
        self.live = Live()
        self.duration = 0.0
        self.live.line(":s %d" % self.pid)
        self.loop(wake)
        drain(self.streams)
        result = self.result()
        kept = self.keep(result)
        self.deliver(":e " + result)
        if not kept:
            self.insist(result)

    def on_terminate(self, *_: object) -> None:
        self.terminated = True

    def loop(self, wake: int) -> None:
        """Run until the command has ended and its output is complete."""
        deadline = self.began + self.timeout if self.timeout else float("inf")
        beat = self.began + HEARTBEAT
        look = self.began + LOOK_INTERVAL
        exited_at = quiet_since = 0.0
        while True:
            now = time.monotonic()
            wait = min(LOOK_INTERVAL, max(0.02, (self.kill_at if self.why else deadline) - now))
            if exited_at:
                grouped = self.why and now < self.kill_at + 1 and self.group_lives()
                done = all(stream.pipe is None for stream in self.streams)
                if not grouped and (done or now - quiet_since >= QUIET or now - exited_at >= LONGEST):
                    return
                wait = min(wait, QUIET / 3)
            elif not self.why and (self.terminated or now >= deadline):
                self.why = "killed" if self.terminated else "timed_out"
                self.kill_at = now + GRACE
                self.signal(signal.SIGTERM)
                self.signal(signal.SIGCONT)
            if self.why and now >= self.kill_at:
                self.signal(signal.SIGKILL)
            if now >= beat:
                beat = now + HEARTBEAT
                if not self.live.behind(self.streams):
                    self.live.line(":h")
            if now >= look:
                look = now + LOOK_INTERVAL
                self.end_leftovers()
            self.live.flush()
            self.live.feed(self.streams, now)
            if self.poll(wake, wait):
                quiet_since = time.monotonic()
            lost = time.monotonic() - now - wait
            if lost > FROZEN:  # time spent in a pause does not count
                self.began += lost
                deadline += lost
            if not exited_at:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.status = status
                    exited_at = quiet_since = time.monotonic()
                    self.duration = exited_at - self.began

    def end_leftovers(self) -> None:
        """If the journal has a file `sweep`, end the command's leftover processes, then write `swept`."""
        wish = os.path.join(self.folder, "sweep")
        try:
            with open(wish) as file:
                token = file.read(100)
            os.unlink(wish)
        except OSError:
            return
        ended = end_orphans("%s=%s" % (RUN_VARIABLE, self.name), self.pid)
        try:
            write_file(os.path.join(self.folder, "swept.new"), ("%s %d" % (token, ended)).encode("ascii", "replace"))
            os.rename(os.path.join(self.folder, "swept.new"), os.path.join(self.folder, "swept"))
        except OSError:
            pass

    def poll(self, wake: int, wait: float) -> bool:
        """Wait for an event. Returns True if output arrived."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        readable = {stream.pipe: stream for stream in self.streams if stream.wants()}
        for fd in readable:
            poll.register(fd or 0, select.POLLIN)
        now = time.monotonic()
        if self.live.can_send(self.streams, now):
            poll.register(1, select.POLLOUT)
        elif self.live.behind(self.streams):
            held = [stream.interval_end for stream in self.streams if stream.is_held(now)]
            wait = min([wait] + [max(0.0, end - now) for end in held])
        came = False
        for fd, _ in poll.poll(int(wait * 1000) + 1):
            if fd in readable:
                came = readable[fd].read() or came
            elif fd == wake:
                os.read(wake, 4096)
        return came

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass

    def group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return False
        return True

    def result(self) -> str:
        ended = os.WIFSIGNALED(self.status)
        code = "null" if ended else str(os.WEXITSTATUS(self.status))
        number = str(os.WTERMSIG(self.status)) if ended else "null"
        reason = self.why or "exited"
        text = '{"reason":"%s","code":%s,"signal":%s,"ms":%d' % (reason, code, number, self.duration * 1000)
        for key, stream in zip(("out", "err"), self.streams):
            text += ',"%s":%d,"%s_kept":%d' % (key, stream.total, key, stream.kept)
        return text + "}"

    def keep(self, result: str) -> bool:
        """Write the result to the journal, in memory if the disk is full. Returns False if both failed."""
        for folder in (self.folder, folders(self.name)[1]):
            new, final = os.path.join(folder, "exit.new"), os.path.join(folder, "exit")
            try:
                if folder != self.folder:
                    make_base(BASES[1])
                    os.mkdir(folder, 0o755)
                write_file(new, result.encode("ascii"))
                os.rename(new, final)
            except OSError as error:
                if error.errno == errno.ENOENT and not os.path.isdir(self.folder):
                    return True  # the journal was removed: nobody will ask
                continue
            return True
        return False

    def insist(self, result: str) -> None:
        until = time.monotonic() + EXIT_PATIENCE
        while time.monotonic() < until and not self.keep(result):
            time.sleep(0.5)

    def deliver(self, last: str) -> None:
        """Send all remaining output to the live reader, however slow it is, then the last line."""
        while self.live.behind(self.streams):
            self.wait_for_reader()
            self.live.flush()
            self.live.feed(self.streams, float("inf"))  # intervals do not matter any more
        self.live.line(last)
        while self.live.buffer and not self.live.gone:
            self.live.flush()
            if self.live.buffer:
                self.wait_for_reader()

    def wait_for_reader(self) -> None:
        poll = select.poll()
        poll.register(1, select.POLLOUT)
        poll.poll(1000)


def end_orphans(marker: str, root: int) -> int:
    """End processes with this marker in their environment that no longer belong to the process `root`, unless they
    serve something.

    Starts no process, because that may be impossible. Returns how many there were.
    """
    found = orphans(marker, root)
    first = len(found)
    began = time.monotonic()
    while found and time.monotonic() - began < SWEEP_LONGEST:
        number = signal.SIGTERM if time.monotonic() - began < SWEEP_GRACE else signal.SIGKILL
        for pid in found:
            for one in (number, signal.SIGCONT):
                try:
                    os.kill(pid, one)
                except OSError:
                    pass
        time.sleep(0.1)
        found = orphans(marker, root)
    return first


def orphans(marker: str, root: int) -> "list[int]":
    parents, marked = {}, []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry, "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            parents[int(entry)] = int(parent)
            with open("/proc/%s/environ" % entry, "rb") as file:
                environment = file.read()
        except (OSError, ValueError):
            continue  # it has ended, or belongs to another user
        if state not in (b"Z", b"X") and marker.encode() in environment.split(b"\0"):
            marked.append(int(entry))
    sockets = listening()
    kept = {root, os.getpid()}
    for pid in marked:
        if is_server(pid, sockets):
            kept.update(lineage(pid, parents, root))
    return [pid for pid in marked if pid not in kept and not kept.intersection(lineage(pid, parents, root))]


def lineage(pid: int, parents: "dict[int, int]", root: int) -> "list[int]":
    """Return the process and its ancestors, without the first process of the sandbox."""
    found = []
    while pid > 1 and pid not in found:
        found.append(pid)
        if pid == root:
            break
        pid = parents.get(pid, 0)
    return found


def listening() -> "set[bytes]":
    """Return the listening sockets, in the form of links to them."""
    found = set()
    for name, column, inode in (("tcp", 3, 9), ("tcp6", 3, 9), ("udp", 3, 9), ("udp6", 3, 9), ("unix", 3, 6)):
        try:
            with open("/proc/net/" + name, "rb") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            served = {"tcp": b"0A", "udp": b"07", "unix": b"00010000"}[name.rstrip("6")]
            if len(fields) > inode and fields[column] == served:
                found.add(b"socket:[" + fields[inode] + b"]")
    return found


def is_server(pid: int, sockets: "set[bytes]") -> bool:
    folder = b"/proc/%d/fd" % pid
    try:
        return any(os.readlink(os.path.join(folder, one)) in sockets for one in os.listdir(folder))
    except OSError:
        return False


def drain(streams: "list[Stream]") -> None:
    """Keep reading for children that are still running: without a reader, writing would kill them."""
    for stream in streams:
        if stream.pipe is None:
            continue
        try:
            pid = os.fork()
        except OSError:  # no process could be started
            pid = -1
        if pid == 0:
            try:
                os.setsid()
                os.set_blocking(stream.pipe, True)
                os.dup2(stream.pipe, 0)
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                os.dup2(null, 2)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                os.execvp("cat", ["cat"])
            finally:
                os._exit(1)
        os.close(stream.pipe)
        stream.pipe = None


def start(spec: "list[str]") -> None:
    if spec[2]:
        try:
            os.chdir(spec[2])
        except OSError as error:
            say(":f cwd " + encoded(error.strerror or ""))
            return
    try:
        folder = claim(spec[0])
        if folder is None:
            say(":x")
            follow(spec[0], 0, 0)
            return
        try:
            relay = Relay(spec, folder, folder == folders(spec[0])[1])
        except OSError as error:
            if error.errno not in FULL:
                raise
            relay = Relay(spec, claim_spare(spec[0], error), True)
    except OSError as error:
        say((":f full " if error.errno in FULL else ":f broken ") + encoded(str(error)))
        return
    relay.run()


def find(name: str) -> "str | None":
    """Return the journal. If there are two, the one in which something was started."""
    found = [path for path in folders(name) if os.path.isdir(path)]
    for path in found:
        try:
            if os.stat(os.path.join(path, "lock")).st_size:
                return path
        except OSError:
            pass
    return found[0] if found else None


def relay_pid(folder: str) -> "int | None":
    """Return the pid of the relay that holds the journal, or None."""
    try:
        fd = os.open(os.path.join(folder, "lock"), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return int(os.read(fd, 32) or 0)
    finally:
        os.close(fd)
    return None


def has_started(folder: str) -> bool:
    try:
        return os.stat(os.path.join(folder, "lock")).st_size > 0
    except OSError:
        return False


def read_result(name: str) -> "str | None":
    for folder in folders(name):
        try:
            with open(os.path.join(folder, "exit")) as file:
                return file.read()
        except OSError:
            pass
    return None


class Told:
    """One file of a journal, and how much of it was sent."""

    def __init__(self, number: int, name: str, offset: int) -> None:
        self.number = number
        self.name = name
        self.offset = offset
        self.fd: "int | None" = None

    def tell(self, folder: str) -> None:
        if self.fd is None:
            try:
                self.fd = os.open(os.path.join(folder, self.name), os.O_RDONLY)
            except OSError:
                return
        size = os.fstat(self.fd).st_size
        if size - self.offset > LIVE_LIMIT and is_open_file(os.path.join(folder, self.name), self.fd):
            self.offset = size
            say(fetch_line(self.number, size, folder))
        while self.offset < size:
            data = os.pread(self.fd, min(CHUNK, size - self.offset), self.offset)
            if not data:
                return
            say(":%d %d %s" % (self.number, self.offset, binascii.b2a_base64(data).decode("ascii").strip()))
            self.offset += len(data)


def follow(name: str, out: int, err: int) -> None:
    """Send the journal from these offsets on until the command has ended."""
    began = beat = seen = time.monotonic()
    files = [Told(1, "out", out), Told(2, "err", err)]
    while True:
        folder = find(name)
        result = None
        alive = False
        if folder is not None:
            alive = relay_pid(folder) is not None
            result = read_result(name)
            for file in files:
                file.tell(folder)
        now = time.monotonic()
        if result is not None:
            say(":e " + result)
            return
        if folder is None:
            say(':e {"reason":"not_started"}')
            return
        if alive:
            seen = now
        elif os.path.exists(os.path.join(folder, "claimed")):
            say(':e {"reason":"not_started"}')
            return
        elif now - seen > ORPHAN_GRACE:
            say(':e {"reason":"%s"}' % ("lost" if has_started(folder) else "not_started"))
            return
        if now - began > FOLLOW_LONGEST:
            say(":a")
            return
        if now - beat > HEARTBEAT:
            beat = now
            say(":h")
        time.sleep(FOLLOW_INTERVAL)


def claim_only(name: str) -> None:
    folder = claim(name)
    if folder is not None:
        write_file(os.path.join(folder, "claimed"), b"")
    say(":r " + ("yes" if folder is not None else "no"))


def kill(name: str) -> None:
    until = time.monotonic() + ORPHAN_GRACE
    while True:
        folder = find(name)
        pid = folder and relay_pid(folder)
        if pid != 0 or time.monotonic() > until:  # 0: it is about to start
            break
        time.sleep(0.02)
    if pid:
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError:
            pid = None
    say(":r " + ("yes" if pid else "no"))


def forget(names: "list[str]") -> None:
    for folder in [folder for name in names for folder in folders(name)]:
        try:
            for entry in os.listdir(folder):
                os.unlink(os.path.join(folder, entry))
            os.rmdir(folder)
        except OSError:
            pass
    say(":r yes")


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
    say("\n:: " + mark)
    if verb == "start":
        start(read_spec(arguments[1:]))
    elif verb == "follow":
        follow(arguments[1], int(arguments[2]), int(arguments[3]))
    elif verb == "forget":
        forget(arguments[1:])
    else:
        {"claim": claim_only, "kill": kill}[verb](arguments[1])


if __name__ == "__main__":
    main(sys.argv[1:])
