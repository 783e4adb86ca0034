"""Run inside a sandbox: one SSH connection between the platform and an sshd started for it alone.

    python3 -I -S ssh.py MARK NAME [FOLDER]

The sandbox opens no port: sshd gets one end of a socket pair as its connection (`sshd -i`), this process has the other one, and the platform
exchanges lines with it on its standard input and output. A line that starts with `=` is bytes as base64; all others are JSON.

From the platform: `begin` (first; the public key that may log in), `ack` (bytes passed on), `eof` (no more input from the client), `ping`.
To the platform: `hello` (sshd's public key), `ack` (bytes taken by sshd), `ping`, `error` (there is no sshd, or no place for its key), `end`
(sshd has ended, with its error output).

sshd runs as the user who runs this, and only this user can log in. Its host key stays in the sandbox, one per NAME, so that a copy of a
sandbox creates its own. Its configuration and the client's key are in unlinked files that disappear with this process. Standard library
only, Python 3.6 or newer.
"""

import binascii
import fcntl
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time

MYPY = False
if MYPY:
    from typing import Any

BASE = "/tmp/.sandyard"
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
BEAT_S = 10.0
SILENCE_S = 45.0  # the platform sends something every 10 s
CHUNK = 96 << 10
WINDOW = 2 << 20  # bytes that may be in flight to the platform
ACK_EVERY = 64 << 10
COMPLAINTS = 2000
END_S = 5.0
OWN = ("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "TERM", "PWD", "OLDPWD", "SHLVL", "_")  # are set by the login
SETTINGS = """
AuthenticationMethods publickey
StrictModes no
PidFile none
PrintMotd no
PrintLastLog no
AllowAgentForwarding no
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
X11Forwarding no
PermitTunnel no
LoginGraceTime 60
LogLevel ERROR
Subsystem sftp internal-sftp
"""  # StrictModes: an unlinked file has no folder whose owner could be checked


class Unfit(Exception):  # noqa: N818 - it is the sandbox that is
    def __init__(self, code: str, text: str) -> None:
        Exception.__init__(self, text)
        self.code = code


def say(line: bytes) -> None:
    data = line + b"\n"
    while data:
        data = data[os.write(1, data) :]


def tell(kind: str, **fields: "Any") -> None:
    say(json.dumps(dict(fields, t=kind)).encode("ascii"))


def program(name: str) -> str:
    path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath),) + SBIN))
    if path is None:
        raise Unfit("no_sshd", "there is no %s on its PATH" % name)
    return path


def folder_of(base: str) -> str:
    """Return a folder that belongs to this user alone. Raises OSError."""
    try:
        os.mkdir(base)
        os.chmod(base, 0o1777)
    except FileExistsError:
        pass
    path = os.path.join(base, "ssh-%d" % os.geteuid())
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o170000 != 0o040000:
        raise OSError("%s belongs to another user" % path)
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def host_key(folder: str, name: str) -> "tuple[str, str]":
    """Return its file and the public key. Created if missing, with a lock. Raises OSError and Unfit."""
    path = os.path.join(folder, "host-%s" % name)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (os.path.isfile(path) and os.path.isfile(path + ".pub")):
            new = os.path.join(folder, "new")
            if os.path.isfile(new):
                os.unlink(new)
            words = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", new]
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                raise OSError("ssh-keygen said: %s" % done.stdout.decode("utf-8", "replace")[-300:].strip())
            os.rename(new + ".pub", path + ".pub")
            os.rename(new, path)
    finally:
        os.close(lock)
    with open(path + ".pub") as file:
        return path, " ".join(file.read().split()[:2])


def nameless(folder: str, text: str) -> "tuple[int, str]":
    """Create an unlinked file. Returns its descriptor and the path by which a child process opens it."""
    path = os.path.join(folder, "nameless-%d" % os.getpid())
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    os.write(number, text.encode("utf-8", "surrogateescape"))
    return number, "/proc/%d/fd/%d" % (os.getpid(), number)


def variables() -> str:
    """Return the environment of commands as an sshd setting, which cannot contain line breaks."""
    words = []
    for name, value in sorted(os.environ.items()):
        if name not in OWN and re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name) and not re.search(r"[\x00-\x1f]", value):
            words.append('"%s=%s"' % (name, value.replace("\\", "\\\\").replace('"', '\\"')))
    return "SetEnv %s\n" % " ".join(words) if words else ""


def start(folder: str, key_file: str, public_key: str) -> "tuple[subprocess.Popen[bytes], socket.socket, list[int]]":
    """Start sshd. Returns it, our end of its connection, and descriptors that must stay open for it."""
    keys, keys_path = nameless(folder, public_key + "\n")
    own = "HostKey %s\nAuthorizedKeysFile %s\n" % (key_file, keys_path)
    settings, settings_path = nameless(folder, own + SETTINGS + variables())
    ours, its = socket.socketpair()
    try:
        sshd = subprocess.Popen(
            [program("sshd"), "-i", "-e", "-f", settings_path],
            stdin=its.fileno(),
            stdout=its.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
    finally:
        its.close()
    ours.setblocking(False)
    return sshd, ours, [keys, settings]


class Input:
    """Lines from the platform."""

    def __init__(self) -> None:
        self._rest = b""
        self.heard = time.monotonic()

    def lines(self) -> "list[bytes] | None":
        """Return the received lines; None at the end of input."""
        data = os.read(0, 256 << 10)
        if not data:
            return None
        self.heard = time.monotonic()
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        return parts

    def silent(self) -> bool:
        return time.monotonic() - self.heard > SILENCE_S


class Connection:
    def __init__(self, platform: Input, sshd: "subprocess.Popen[bytes]", link: socket.socket) -> None:
        self._platform = platform
        self._sshd = sshd
        self._link = link
        self._inward = bytearray()
        self._closing = False
        self._taken = 0
        self._under_way = 0
        self.complaints = b""

    def run(self, first: "list[bytes]") -> bool:
        """Run until sshd ends (True) or the platform is gone (False)."""
        beat = time.monotonic() + BEAT_S
        for line in first:
            self._hear(line)
        assert self._sshd.stderr is not None
        errors = self._sshd.stderr.fileno()
        sources = [0, errors, self._link.fileno()]
        while not self._platform.silent():
            reading = [one for one in sources if one != self._link.fileno() or self._under_way < WINDOW]
            writing = [self._link] if self._inward else []
            ready, able, _ = select.select(reading, writing, [], max(0.0, beat - time.monotonic()))
            if time.monotonic() >= beat:
                tell("ping")
                beat = time.monotonic() + BEAT_S
            if 0 in ready:
                lines = self._platform.lines()
                if lines is None:
                    return False
                for line in lines:
                    self._hear(line)
            if errors in ready:
                said = os.read(errors, 4096)
                self.complaints = (self.complaints + said)[-COMPLAINTS:]
                if not said:
                    sources.remove(errors)
            if able:
                self._pass_on()
            if self._link.fileno() in ready and not self._take():
                return True
        return False

    def _hear(self, line: bytes) -> None:
        if line[:1] == b"=":
            self._inward += binascii.a2b_base64(line[1:])
        elif line:
            frame = json.loads(line.decode("ascii"))
            if frame["t"] == "ack":
                self._under_way -= int(frame["n"])
            elif frame["t"] == "eof":
                self._closing = True
                if not self._inward:
                    self._pass_on()

    def _pass_on(self) -> None:
        try:
            sent = self._link.send(self._inward[: 256 << 10]) if self._inward else 0
            if self._closing and sent == len(self._inward):
                self._link.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:  # sshd is gone, which its end of the socket reports too
            sent = len(self._inward)
        del self._inward[:sent]
        self._taken += sent
        if self._taken >= ACK_EVERY:
            tell("ack", n=self._taken)
            self._taken = 0

    def _take(self) -> bool:
        """Forward output of sshd. Returns False at its end."""
        try:
            data = self._link.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if data:
            self._under_way += len(data)
            say(b"=" + binascii.b2a_base64(data, newline=False))
        return bool(data)


def serve(name: str, base: str) -> None:
    platform = Input()
    first: "list[bytes]" = []
    while not first:
        if not select.select([0], [], [], SILENCE_S)[0]:
            return
        lines = platform.lines()
        if lines is None:
            return
        first += lines
    public_key = str(json.loads(first[0].decode("ascii"))["key"])
    folder = folder_of(base)
    program("sshd")
    key_file, public = host_key(folder, name)
    sshd, link, kept = start(folder, key_file, public_key)
    tell("hello", key=public)
    connection = Connection(platform, sshd, link)
    told = connection.run(first[1:])
    link.close()
    if told:
        try:
            sshd.wait(END_S)
        except subprocess.TimeoutExpired:
            pass
        tell("end", text=connection.complaints.decode("utf-8", "replace").strip())
    for number in kept:
        os.close(number)


def main(arguments: "list[str]") -> None:
    say(b"\n:: " + arguments[0].encode("ascii"))
    try:
        serve(arguments[1], arguments[2] if len(arguments) > 2 else BASE)
    except Unfit as error:
        tell("error", code=error.code, text=str(error))
    except OSError as error:
        tell("error", code="failed", text=str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
