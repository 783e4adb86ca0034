"""A real sshd on a loopback port, with a configuration, host key and accepted key of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from sandyard.kit.listen import free_port
from sandyard.kit.secret import Secret

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PubkeyAuthentication yes
"""


class Sshd:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = getpass.getuser()
        self.port = free_port()
        folder.mkdir()
        self.make_key("host_key")
        self.key = Secret(self.make_key("user_key"))
        (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
        (folder / "user_key").unlink()
        (folder / "sshd_config").write_text(_CONFIG.format(port=self.port, folder=folder))

    def url(self, path: Path) -> str:
        return f"ssh://{self.user}@127.0.0.1:{self.port}{path}"

    def make_key(self, name: str, passphrase: str = "") -> str:
        path = self.folder / name
        path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)
        return path.read_text()


@contextlib.contextmanager
def sshd(folder: Path) -> Iterator[Sshd]:
    assert SSHD is not None
    server = Sshd(folder)
    if os.geteuid() == 0:
        # sshd does not start as root without it, and nothing else creates it here
        Path("/run/sshd").mkdir(exist_ok=True)
    command = [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_until_listening(process, server.port, folder / "log")
        yield server
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"sshd does not listen: {log.read_text()[-500:]}")
