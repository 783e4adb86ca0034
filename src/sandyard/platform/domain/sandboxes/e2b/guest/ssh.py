"""Run inside a sandbox: one SSH connection between the platform and an sshd of its own.

    python3 -I -S ssh.py MARK NAME [FOLDER]

MARK is printed first, so that the platform can skip what the login shell has written before.

The sandbox opens no port: sshd gets one end of a socket pair as its connection (`sshd -i`), this process has the other one, and the platform
exchanges lines with it on its standard input and output. A line that starts with `=` is bytes as base64; all others are JSON.

From the platform: `begin` (first; the public key that may log in), `ack` (bytes that the platform has passed on), `eof` (no more
input from the client), `ping`.
To the platform: `hello` (sshd's public key), `ack` (bytes that sshd has read), `ping`, `error` (there is no sshd, or its key cannot be
stored), `end` (sshd has ended, with its error output).

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
PING_S = 10.0
SILENCE_S = 45.0  # the platform sends something every 10 s
CHUNK = 96 << 10
WINDOW = 2 << 20  # bytes that may be in flight to the platform
ACK_EVERY = 64 << 10
ERROR_OUTPUT_LIMIT = 2000
END_S = 5.0
LOGIN_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "TERM", "PWD", "OLDPWD", "SHLVL", "_")  # sshd sets them
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


class NoSshdError(Exception):
    """A program that SSH needs is not installed in the sandbox. `code` is for the platform."""

    def __init__(self, code: str, text: str) -> None:
        Exception.__init__(self, text)
        self.code = code


def write_line(line: bytes) -> None:
    data = line + b"\n"
    while data:
        data = data[os.write(1, data) :]


def send_frame(kind: str, **fields: "Any") -> None:
    write_line(json.dumps(dict(fields, t=kind)).encode("ascii"))


def find_program(name: str) -> str:
    """Return the path of an executable. Raises NoSshdError if it is not installed."""
    path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath),) + SBIN))
    if path is None:
        raise NoSshdError("no_sshd", "there is no %s on its PATH" % name)
    return path


def create_private_folder(base: str) -> str:
    """Return the path of a folder that only this user can access; create it if needed. Raises OSError."""
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


def ensure_host_key(folder: str, name: str) -> "tuple[str, str]":
    """Return the private key's file and the public key, which are created if they do not exist. Raises OSError and NoSshdError."""
    path = os.path.join(folder, "host-%s" % name)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (os.path.isfile(path) and os.path.isfile(path + ".pub")):
            new = os.path.join(folder, "new")
            if os.path.isfile(new):
                os.unlink(new)
            command = [find_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", new]
            result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if result.returncode:
                raise OSError("ssh-keygen failed: %s" % result.stdout.decode("utf-8", "replace")[-300:].strip())
            os.rename(new + ".pub", path + ".pub")
            os.rename(new, path)
    finally:
        os.close(lock)
    with open(path + ".pub") as file:
        return path, " ".join(file.read().split()[:2])


def create_unlinked_file(folder: str, text: str) -> "tuple[int, str]":
    """Create an unlinked file. Returns its descriptor and the path by which a child process opens it."""
    path = os.path.join(folder, "unlinked-%d" % os.getpid())
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    os.write(number, text.encode("utf-8", "surrogateescape"))
    return number, "/proc/%d/fd/%d" % (os.getpid(), number)


def format_environment() -> str:
    """Return the environment variables of commands as an sshd setting, which cannot contain line breaks."""
    assignments = []
    for name, value in sorted(os.environ.items()):
        if (
            name not in LOGIN_VARIABLES
            and re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name)
            and not re.search(r"[\x00-\x1f]", value)
        ):
            assignments.append('"%s=%s"' % (name, value.replace("\\", "\\\\").replace('"', '\\"')))
    return "SetEnv %s\n" % " ".join(assignments) if assignments else ""


def start_sshd(
    folder: str, key_file: str, public_key: str
) -> "tuple[subprocess.Popen[bytes], socket.socket, list[int]]":
    """Start sshd. Returns it, our end of its connection, and descriptors that must stay open for it."""
    keys, keys_path = create_unlinked_file(folder, public_key + "\n")
    key_settings = "HostKey %s\nAuthorizedKeysFile %s\n" % (key_file, keys_path)
    settings, settings_path = create_unlinked_file(folder, key_settings + SETTINGS + format_environment())
    own_end, sshd_end = socket.socketpair()
    try:
        sshd = subprocess.Popen(
            [find_program("sshd"), "-i", "-e", "-f", settings_path],
            stdin=sshd_end.fileno(),
            stdout=sshd_end.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
    finally:
        sshd_end.close()
    own_end.setblocking(False)
    return sshd, own_end, [keys, settings]


class PlatformInput:
    """The lines that the platform sends."""

    def __init__(self) -> None:
        self._partial_line = b""
        self._last_read_at = time.monotonic()

    def read_lines(self) -> "list[bytes] | None":
        """Return the received lines; None at the end of input."""
        data = os.read(0, 256 << 10)
        if not data:
            return None
        self._last_read_at = time.monotonic()
        parts = (self._partial_line + data).split(b"\n")
        self._partial_line = parts.pop()
        return parts

    def is_silent(self) -> bool:
        """Return whether the platform has been silent for too long."""
        return time.monotonic() - self._last_read_at > SILENCE_S


class SshConnection:
    """Copies data between the platform and sshd."""

    def __init__(self, platform: PlatformInput, sshd: "subprocess.Popen[bytes]", link: socket.socket) -> None:
        self._platform = platform
        self._sshd = sshd
        self._link = link
        self._input = bytearray()
        self._input_ended = False
        self._unreported = 0
        self._unacknowledged = 0
        self.error_output = b""

    def run(self, first: "list[bytes]") -> bool:
        """Run until sshd ends (True) or the platform is gone (False)."""
        next_ping = time.monotonic() + PING_S
        for line in first:
            self._handle_line(line)
        assert self._sshd.stderr is not None
        errors = self._sshd.stderr.fileno()
        sources = [0, errors, self._link.fileno()]
        while not self._platform.is_silent():
            reading = [source for source in sources if source != self._link.fileno() or self._unacknowledged < WINDOW]
            writing = [self._link] if self._input else []
            ready, writable, _ = select.select(reading, writing, [], max(0.0, next_ping - time.monotonic()))
            if time.monotonic() >= next_ping:
                send_frame("ping")
                next_ping = time.monotonic() + PING_S
            if 0 in ready:
                lines = self._platform.read_lines()
                if lines is None:
                    return False
                for line in lines:
                    self._handle_line(line)
            if errors in ready:
                text = os.read(errors, 4096)
                self.error_output = (self.error_output + text)[-ERROR_OUTPUT_LIMIT:]
                if not text:
                    sources.remove(errors)
            if writable:
                self._write_input()
            if self._link.fileno() in ready and not self._forward_output():
                return True
        return False

    def _handle_line(self, line: bytes) -> None:
        if line[:1] == b"=":
            self._input += binascii.a2b_base64(line[1:])
        elif line:
            frame = json.loads(line.decode("ascii"))
            if frame["t"] == "ack":
                self._unacknowledged -= int(frame["n"])
            elif frame["t"] == "eof":
                self._input_ended = True
                if not self._input:
                    self._write_input()

    def _write_input(self) -> None:
        """Write input to sshd, as much as it accepts, and report how much that was."""
        try:
            sent = self._link.send(self._input[: 256 << 10]) if self._input else 0
            if self._input_ended and sent == len(self._input):
                self._link.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:  # sshd is gone, which its end of the socket reports too
            sent = len(self._input)
        del self._input[:sent]
        self._unreported += sent
        if self._unreported >= ACK_EVERY:
            send_frame("ack", n=self._unreported)
            self._unreported = 0

    def _forward_output(self) -> bool:
        """Forward output of sshd. Returns False at its end."""
        try:
            data = self._link.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if data:
            self._unacknowledged += len(data)
            write_line(b"=" + binascii.b2a_base64(data, newline=False))
        return bool(data)


def serve(name: str, base: str) -> None:
    platform = PlatformInput()
    first: "list[bytes]" = []
    while not first:
        if not select.select([0], [], [], SILENCE_S)[0]:
            return
        lines = platform.read_lines()
        if lines is None:
            return
        first += lines
    public_key = str(json.loads(first[0].decode("ascii"))["key"])
    folder = create_private_folder(base)
    find_program("sshd")
    key_file, public = ensure_host_key(folder, name)
    sshd, link, open_files = start_sshd(folder, key_file, public_key)
    send_frame("hello", key=public)
    connection = SshConnection(platform, sshd, link)
    sshd_ended = connection.run(first[1:])
    link.close()
    if sshd_ended:
        try:
            sshd.wait(END_S)
        except subprocess.TimeoutExpired:
            pass
        send_frame("end", text=connection.error_output.decode("utf-8", "replace").strip())
    for number in open_files:
        os.close(number)


def main(arguments: "list[str]") -> None:
    write_line(b"\n:: " + arguments[0].encode("ascii"))
    try:
        serve(arguments[1], arguments[2] if len(arguments) > 2 else BASE)
    except NoSshdError as error:
        send_frame("error", code=error.code, text=str(error))
    except OSError as error:
        send_frame("error", code="failed", text=str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
