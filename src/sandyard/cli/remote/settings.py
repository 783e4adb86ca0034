"""OpenSSH configuration: our own key, settings for `*.sandyard`, and host keys from the server.

Everything is stored next to the login, readable only by its owner. `~/.ssh/config` gets one line that includes our settings.
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
from sandyard.kit.python import PYTHON, make_python_command

SUFFIX = ".sandyard"
SETTINGS = """\
# Written by `sandyard ssh-config --write`, which overwrites it. Put changes into ~/.ssh/config, below the line that includes this file.
# Names with a quotation mark are never sandboxes: OpenSSH before 9.6 would pass them to your shell.
Host *{suffix} "!*'*"
  User user
  ProxyCommand {command} ssh --stdio '%n'
  IdentityFile "{folder}/id_ed25519"
  IdentitiesOnly yes
  PreferredAuthentications publickey
  # the server you are logged in to sends each sandbox's host key, so no key is trusted on first use
  UserKnownHostsFile "{folder}/known_hosts/%n"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  CheckHostIP no
  UpdateHostKeys no
  # programs in a sandbox must not use your keys or your display
  ForwardAgent no
  ForwardX11 no
"""


def get_folder() -> Path:
    """Return the folder of our settings, key pair and host keys. It may not exist."""
    return config.get_path().parent / "ssh"


def parse_host(host: str) -> str:
    """Return the session or sandbox of a host name. Raises CommandError if it cannot be one."""
    name = host.removesuffix(SUFFIX)
    if not (name.isascii() and name.replace("_", "").isalnum()):
        raise CommandError(f"{host!r} is not a session or sandbox. Use a name such as ses_…{SUFFIX} or sbx_…{SUFFIX}.")
    return name


def format_settings() -> str:
    """Return the settings, for OpenSSH 8.4 or newer."""
    return SETTINGS.format(suffix=SUFFIX, command=_get_own_command(), folder=_escape_percent(str(get_folder())))


def write_settings() -> Path:
    """Write our settings file and key. Idempotent."""
    ensure_key()
    path = get_folder() / "config"
    _replace(path, format_settings())
    return path


def add_include(path: Path) -> tuple[Path, bool]:
    """Include `path` at the top of `~/.ssh/config`, because the first match wins.

    Return the file and whether it was changed. False: `path` was already included.
    """
    file = Path.home() / ".ssh" / "config"
    line = f'Include "{path}"'
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        content = file.read_text(errors="surrogateescape")
    except FileNotFoundError:
        content = ""
    if line in (existing.strip() for existing in content.splitlines()):
        return file, False
    separator = "\n" if content else ""
    _replace(file.resolve(), f"{line}\n{separator}{content}")
    return file, True


def ensure_key() -> str:
    """Return our public key. Creates the key pair if it does not exist. Raises CommandError if that fails."""
    with _hold_lock():
        key = get_folder() / "id_ed25519"
        public = key.with_name("id_ed25519.pub")
        if not (key.exists() and public.exists()):
            argv = [find_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "sandyard", "-f", str(key)]
            for file in (key, public):
                file.unlink(missing_ok=True)
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CommandError(f"ssh-keygen could not create a key: {done.stderr.strip() or done.stdout.strip()}")
        return public.read_text().strip()


def add_known_host(host: str, key: str) -> None:
    """Store the key of a host, in place of an earlier one."""
    _replace(get_folder() / "known_hosts" / host, f"{host.lower()} {key}\n")


def find_program(program: str) -> str:
    """Return the path of a program. Raises CommandError if it is not installed."""
    path = shutil.which(program)
    if path is None:
        raise CommandError(
            f"{program} is not installed. Install the OpenSSH client (openssh-client on Debian and Ubuntu)."
        )
    return path


def _get_own_command() -> str:
    """Return the absolute command that OpenSSH and editors start, independent of PATH and of the working directory, which may hold
    untrusted files."""
    script = Path(PYTHON).with_name("sandyard")
    words = [str(script)] if script.exists() else make_python_command("sandyard")
    home = os.environ.get("XDG_CONFIG_HOME")
    return _escape_percent(shlex.join([*(["env", f"XDG_CONFIG_HOME={home}"] if home else []), *words]))


def _escape_percent(text: str) -> str:
    return text.replace("%", "%%")


@contextlib.contextmanager
def _hold_lock() -> Iterator[None]:
    """Let one process at a time create the key: an editor opens several connections at once."""
    get_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(get_folder() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, so that readers see either the old or the new content."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(errors="surrogateescape") == text:
            return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", errors="surrogateescape"
        ) as stream:
            stream.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
