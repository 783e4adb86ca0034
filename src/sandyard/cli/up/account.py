"""The user that the platform runs as if root starts it. It owns the platform's data and nothing else on the machine."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sandyard
from sandyard.cli.errors import CommandError
from sandyard.cli.up import stepdown
from sandyard.kit.listen import FIRST_UNPRIVILEGED_PORT
from sandyard.kit.python import (
    PYTHON,
    SAFE_FOLDER,
    make_bare_python_command,
    make_python_command,
    make_python_environment,
)

USER_NAME = "sandyard"
ROOT = "root"
TIMEOUT_SECONDS = 30


def choose_account(name: str | None) -> pwd.struct_passwd | None:
    """Return the user to run the platform as, or None for the current user. Raises CommandError if that is not possible."""
    if os.geteuid() != 0:
        if name is not None:
            raise CommandError("--platform-user needs root: only root can start a process as another user.")
        return None
    if name == ROOT:
        return None
    try:
        return pwd.getpwnam(name or USER_NAME)
    except KeyError:
        if name is not None:
            raise CommandError(f"There is no user {name!r} on this machine.") from None
    return _create_user()


def _create_user() -> pwd.struct_passwd:
    options = ["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    shell = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin:/bin") or "/bin/false"
    program = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    reason = "`useradd` is not installed"
    if program is not None:
        command = [program, *options, "--shell", shell, "--comment", "Sandyard's platform", USER_NAME]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
            cwd=SAFE_FOLDER,
            errors="replace",
        )
        reason = done.stderr.strip()
    try:
        return pwd.getpwnam(USER_NAME)  # another process may have created it meanwhile
    except KeyError:
        raise CommandError(
            f"Could not create the system user {USER_NAME!r} that the platform runs as: {reason}. "
            "Create a user and pass --platform-user NAME, or pass --platform-user root to run the platform as root."
        ) from None


def compile_code() -> None:
    """Compile the code while the engine starts, because the platform's user cannot write bytecode next to it. Does nothing if bytecode is
    stored elsewhere or not at all."""
    if sys.pycache_prefix is None and not sys.dont_write_bytecode:
        subprocess.Popen(
            make_python_command("compileall", "-q", str(Path(sandyard.__file__).parent)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=SAFE_FOLDER,
            env=make_python_environment({}),
        )


def make_stepdown_command(
    user: pwd.struct_passwd, command: list[str], environment: Mapping[str, str], writable: Path
) -> list[str]:
    """Return the command that runs `command` as that user, with read access to this program's code and write access to `writable`,
    wherever they are, and with a listening socket if the configured port is reserved for root."""
    certificate_paths = [path for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if (path := environment.get(name))]
    shown = dict.fromkeys(list_code_folders(*certificate_paths), False)
    order: dict[str, Any] = {"uid": user.pw_uid, "gid": user.pw_gid, "shown": shown | {str(writable): True}}
    if 0 < (port := int(environment["SANDYARD_PORT"])) < FIRST_UNPRIVILEGED_PORT:
        order["listen"] = [environment["SANDYARD_HOST"], port]
    return make_bare_python_command(stepdown.__file__, json.dumps(order), *command)


def list_code_folders(*more: str) -> list[str]:
    """Return the directories of Python and of this program, and `more`, by their names and by their real paths, without directories inside
    others."""
    # the first entry is the script's or the caller's directory
    searched = sys.path if sys.flags.safe_path else sys.path[1:]
    named = [sys.prefix, sys.base_prefix, str(Path(sandyard.__file__).parents[1]), *searched, *more]
    named += [str(Path(PYTHON).resolve().parents[1])]
    existing = {path for name in named for path in (name, os.path.realpath(name)) if _exists(name)}
    return sorted(path for path in existing if not any(str(parent) in existing for parent in Path(path).parents))


def _exists(path: str) -> bool:
    return Path(path).is_absolute() and Path(path).exists() and os.path.realpath(path) != SAFE_FOLDER
