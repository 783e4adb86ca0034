"""What OpenSSH needs of us: a key of our own, settings for `*.sandyard`, and the hosts' keys as the server tells them.

All of it lies beside the login, readable by its owner only. `~/.ssh/config` gets one line, which includes our settings.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sandyard.cli import config
from sandyard.cli.errors import CommandError
from sandyard.kit.python import PYTHON, python_command

SUFFIX = ".sandyard"
SETTINGS = """\
# Written by `sandyard ssh-config --write`, which writes it anew: changes belong into ~/.ssh/config, below the line that includes this.
# A name with a quotation mark in it is no sandbox's: OpenSSH before 9.6 would hand it to your shell.
Host *{suffix} "!*'*"
  User user
  ProxyCommand {command} ssh --stdio '%n'
  IdentityFile "{folder}/id_ed25519"
  IdentitiesOnly yes
  PreferredAuthentications publickey
  # a sandbox's key comes with the connection, from the server you are logged in to: nothing is ever taken on trust
  UserKnownHostsFile "{folder}/known_hosts/%n"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  CheckHostIP no
  UpdateHostKeys no
  # what runs in a sandbox must not use your keys or your screen
  ForwardAgent no
  ForwardX11 no
"""


def folder() -> Path:
    return config.path().parent / "ssh"


def name_of(host: str) -> str:
    """The session or sandbox that a host name means. CommandError when it can be none."""
    name = host.removesuffix(SUFFIX)
    if not (name.isascii() and name.replace("_", "").isalnum()):
        raise CommandError(
            f"{host!r} is no session and no sandbox: their names look like ses_…{SUFFIX} and sbx_…{SUFFIX}."
        )
    return name


def settings() -> str:
    """For OpenSSH 8.4 or newer."""
    return SETTINGS.format(suffix=SUFFIX, command=_own_command(), folder=_escaped(str(folder())))


def write_settings() -> Path:
    """Our file and our key, as they should be. Idempotent."""
    ensure_key()
    path = folder() / "config"
    _replace(path, settings())
    return path


def include(path: Path) -> tuple[Path, bool]:
    """Have `~/.ssh/config` include it, before anything else: what comes first counts. False: it does already."""
    file = Path.home() / ".ssh" / "config"
    line = f'Include "{path}"'
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        known = file.read_text()
    except FileNotFoundError:
        known = ""
    if line in (one.strip() for one in known.splitlines()):
        return file, False
    _replace(file.resolve(), f"{line}\n{known and chr(10)}{known}")
    return file, True


def ensure_key() -> str:
    """The public half of our key, made when there is none. CommandError when it cannot be."""
    with _alone():
        key = folder() / "id_ed25519"
        public = key.with_name("id_ed25519.pub")
        if not (key.exists() and public.exists()):
            words = [needed("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "sandyard", "-f", str(key)]
            for half in (key, public):
                half.unlink(missing_ok=True)
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CommandError(f"ssh-keygen could not make a key: {done.stderr.strip() or done.stdout.strip()}")
        return public.read_text().strip()


def know_host(host: str, key: str) -> None:
    """From now on this is the key of that host."""
    _replace(folder() / "known_hosts" / host, f"{host.lower()} {key}\n")


def needed(program: str) -> str:
    """CommandError when it is not there."""
    path = shutil.which(program)
    if path is None:
        raise CommandError(
            f"There is no {program} here. Install OpenSSH's client: on Debian and Ubuntu, openssh-client."
        )
    return path


def _own_command() -> str:
    """How OpenSSH and editors start us, whatever their PATH and wherever they are: a folder one works in holds other people's files."""
    script = Path(PYTHON).with_name("sandyard")
    words = [str(script)] if script.exists() else python_command("sandyard")
    home = os.environ.get("XDG_CONFIG_HOME")
    return _escaped(shlex.join([*(["env", f"XDG_CONFIG_HOME={home}"] if home else []), *words]))


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """An editor opens several connections at once."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, text: str) -> None:
    """At once, so that whoever reads it meanwhile sees the old or the new one."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text:
            return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(text)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
