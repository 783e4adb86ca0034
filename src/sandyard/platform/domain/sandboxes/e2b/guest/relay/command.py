"""Run one command: start it, forward its output, end it in time, and store its result."""

import errno
import fcntl
import os
import select
import time

from sandyard.platform.domain.sandboxes.e2b.guest.relay.journal import (
    BASES,
    list_journal_folders,
    make_base,
    write_file,
)
from sandyard.platform.domain.sandboxes.e2b.guest.relay.leftovers import end_orphans
from sandyard.platform.domain.sandboxes.e2b.guest.relay.output import LiveOutput, Stream, encode, write_line
from sandyard.platform.domain.sandboxes.e2b.guest.relay.signals import signal

SPARE_LIMIT = 16 << 20  # limit of output in a journal in memory
GRACE = 3.0  # between SIGTERM and SIGKILL
QUIET = 0.15  # children that keep the output open may add to it until it has been quiet for this long
LONGEST = 2.0  # but no longer than this
HEARTBEAT = 10.0
FROZEN = 2.0  # a wait that took this much longer than requested was a pause of the sandbox
LOOK_INTERVAL = 0.2
RUN_VARIABLE = "SANDYARD_RUN"  # in the environment of an agent and of everything it starts
EXIT_PATIENCE = 60.0
SOURCE_LIMIT = 100 << 10  # a longer command does not fit into an argument
PRIVATE = ("SANDYARD_SPEC", "SANDYARD_RELAY")


class RelayedCommand:
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

    def build_argv(self) -> "list[str]":
        if len(self.command.encode("utf-8", "surrogateescape")) > SOURCE_LIMIT:
            return ["/bin/bash", "-l", "-c", 'source "$0"', os.path.join(self.folder, "command")]
        return ["/bin/bash", "-l", "-c", self.command]

    def spawn(self) -> int:
        env = {key: value for key, value in os.environ.items() if key not in PRIVATE and key != "_"}
        env.update((name, value) for name, value in self.variables)
        argv = self.build_argv()
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
            self.store_result('{"reason":"not_started"}')
            write_line(":f processes " + encode(error.strerror or ""))
            return
        self.live = LiveOutput()
        self.duration = 0.0
        self.live.line(":s %d" % self.pid)
        self.run_until_done(wake)
        for stream in self.streams:
            stream.read()  # pipes were not read while a slow reader had too much waiting
        drain(self.streams)
        result = self.format_result()
        kept = self.store_result(result)
        self.send_rest(":e " + result)
        if not kept:
            self.keep_trying_to_store(result)

    def on_terminate(self, *_: object) -> None:
        self.terminated = True

    def run_until_done(self, wake: int) -> None:
        """Run until the command has ended and its output is complete."""
        deadline = self.began + self.timeout if self.timeout else float("inf")
        beat = self.began + HEARTBEAT
        look = self.began + LOOK_INTERVAL
        exited_at = quiet_since = 0.0
        while True:
            now = time.monotonic()
            wait = min(LOOK_INTERVAL, max(0.02, (self.kill_at if self.why else deadline) - now))
            if exited_at:
                grouped = self.why and now < self.kill_at + 1 and self.is_group_alive()
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
                if not self.live.is_behind(self.streams):
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
        readable = {stream.pipe: stream for stream in self.streams if stream.wants_more()}
        for fd in readable:
            poll.register(fd or 0, select.POLLIN)
        now = time.monotonic()
        if self.live.can_send(self.streams, now):
            poll.register(1, select.POLLOUT)
        elif self.live.is_behind(self.streams):
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

    def is_group_alive(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return False
        return True

    def format_result(self) -> str:
        ended = os.WIFSIGNALED(self.status)
        code = "null" if ended else str(os.WEXITSTATUS(self.status))
        number = str(os.WTERMSIG(self.status)) if ended else "null"
        reason = self.why or "exited"
        text = '{"reason":"%s","code":%s,"signal":%s,"ms":%d' % (reason, code, number, self.duration * 1000)
        for key, stream in zip(("out", "err"), self.streams):
            text += ',"%s":%d,"%s_kept":%d' % (key, stream.total, key, stream.kept)
        return text + "}"

    def store_result(self, result: str) -> bool:
        """Write the result to the journal, in memory if the disk is full. Returns False if both failed."""
        for folder in (self.folder, list_journal_folders(self.name)[1]):
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

    def keep_trying_to_store(self, result: str) -> None:
        until = time.monotonic() + EXIT_PATIENCE
        while time.monotonic() < until and not self.store_result(result):
            time.sleep(0.5)

    def send_rest(self, last: str) -> None:
        """Send all remaining output to the live reader, however slow it is, then the last line."""
        while self.live.is_behind(self.streams):
            self.wait_for_reader()
            self.live.flush()
            self.live.feed(self.streams, float("inf"))  # intervals no longer matter
        self.live.line(last)
        while self.live.buffer and not self.live.gone:
            self.live.flush()
            if self.live.buffer:
                self.wait_for_reader()

    def wait_for_reader(self) -> None:
        poll = select.poll()
        poll.register(1, select.POLLOUT)
        poll.poll(1000)


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
