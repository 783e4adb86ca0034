"""The changes that adapt an image to sandboxes, made by a confined process whose `/` is the image: every path here is a
path in the image.

No distribution is assumed: an image only needs /bin/sh and a directory /etc. Nothing from the image is executed. Its
files are hostile, so only regular ones are read, and writing replaces any file of that name.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.machine.kernel import is_root
from sandyard.engine.images.stream import LayerError
from sandyard.engine.templates.host_etc import SUDOERS
from sandyard.engine.templates.trust import BUNDLE, HOST_BUNDLES, Trust, write_layer

USER, UID = "user", 1000
_UID_LIMIT = 60000
_ID, _FIELDS = re.compile(r"[0-9]{1,9}"), 7  # of an account in /etc/passwd
_MAX_FILE_BYTES = 4 << 20
_BUNDLES = ("/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem")
_FOLDERS = (
    ("/run", 0o755),
    ("/home", 0o755),
    ("/root", 0o700),
    ("/var", 0o755),
    ("/tmp", 0o1777),  # noqa: S108
    ("/var/tmp", 0o1777),  # noqa: S108
)
_SKELETON = (".bashrc", ".profile", ".bash_logout")
_PASSWD, _GROUP, _SHADOW = "/etc/passwd", "/etc/group", "/etc/shadow"


@dataclass(frozen=True, slots=True)
class DirectoryAttributes:
    """A directory and its required owner and mode."""

    path: str
    mode: int
    uid: int
    gid: int
    mtime: int


@dataclass(frozen=True, slots=True)
class AdaptOptions:
    """`user` and `path` as the image's author set them; `host_bundle`: this machine's public authorities, for an image
    that has none."""

    user: str
    path: str | None
    folders: tuple[DirectoryAttributes, ...]
    trust: Trust
    host_bundle: str
    privileged: bool


def make_adapt_options(user: str, path: str | None, trust: Trust) -> AdaptOptions:
    """Return the options. Runs in the engine, where paths are those of this machine. Reads one file."""
    bundle = next((Path("/", name) for name in HOST_BUNDLES if Path("/", name).is_file()), None)
    return AdaptOptions(user, path, (), trust, bundle.read_text() if bundle and trust.certificates else "", is_root())


def adapt_image(options: AdaptOptions) -> str | None:
    """Adapt the image. Return the name of the user that its author set, or None. Raises LayerError, OSError."""
    if not os.access("/bin/sh", os.X_OK):
        raise LayerError("has no /bin/sh, but sandboxes run commands in a shell. Choose an image that has one")
    if not stat.S_ISDIR(_stat_or_make_directory("/etc").st_mode):
        raise LayerError("has a link instead of the directory /etc")
    for folder in options.folders:
        _restore_attributes(folder, privileged=options.privileged)
    for path, mode in _FOLDERS:
        _ensure_folder(path, mode)
    _add_user(privileged=options.privileged)
    _ensure_folder("/etc/sudoers.d", 0o755)
    _write_file(
        "/etc/sudoers.d/user",
        "".join(line for line in SUDOERS.splitlines(True) if "env_keep" in line or line.startswith(USER)),
        0o440,
    )
    if options.path:
        # The SDKs run every command in a login shell, which starts with the distribution's own PATH.
        _ensure_folder("/etc/profile.d", 0o755)
        quoted = options.path.replace("'", "'\\''")
        _write_file("/etc/profile.d/00-image-path.sh", f"export PATH='{quoted}'\n", 0o644)
    _install_trust(options.trust, options.host_bundle)
    return _find_user_name(options.user)


def _restore_attributes(folder: DirectoryAttributes, *, privileged: bool) -> None:
    if stat.S_ISDIR(_stat_or_make_directory(folder.path).st_mode):
        if privileged:
            os.chown(folder.path, folder.uid, folder.gid)
        Path(folder.path).chmod(folder.mode)
        os.utime(folder.path, ns=(folder.mtime, folder.mtime))


def _ensure_folder(path: str, mode: int) -> None:
    """Create a directory if there is nothing; directories for temporary files are writable by everybody."""
    place = Path(path)
    if not place.is_dir():
        if os.path.lexists(path):
            place.unlink()
        place.mkdir()
        place.chmod(mode)
    elif mode & stat.S_ISVTX and not place.is_symlink() and stat.S_IMODE(place.stat().st_mode) != mode:
        place.chmod(mode)


# Accounts ---------------------------------------------------------------------------------------------------------------------


def _add_user(*, privileged: bool) -> None:
    accounts, groups = _read_rows(_PASSWD), _read_rows(_GROUP)
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    if not any(row[0] == "root" for row in accounts):
        accounts.insert(0, ["root", "x", "0", "0", "root", "/root", shell])
    if not any(row[0] == "root" for row in groups):
        groups.insert(0, ["root", "x", "0", ""])
    account = next((row for row in accounts if row[0] == USER and len(row) == _FIELDS), None)
    if account is None:
        used_ids = {row[2] for row in (*accounts, *groups) if len(row) > 2}
        uid = next(number for number in range(UID, _UID_LIMIT) if str(number) not in used_ids)
        group = next((row[2] for row in groups if row[0] == USER and len(row) > 2 and row[2].isdigit()), str(uid))
        account = [USER, "x", str(uid), group, "", f"/home/{USER}", shell]
        accounts.append(account)
        if group == str(uid):
            groups.append([USER, "x", group, ""])
    _write_file(_PASSWD, _format_rows(accounts), 0o644)
    _write_file(_GROUP, _format_rows(groups), 0o644)
    if os.path.lexists(_SHADOW):
        _add_shadow(account[0])
    if account[5] == f"/home/{USER}" and _ID.fullmatch(account[2]) and _ID.fullmatch(account[3]):
        _make_home(int(account[2]), int(account[3]), privileged=privileged)


def _add_shadow(name: str) -> None:
    """Add a shadow entry without a valid password. Without it, PAM treats the account as expired, and sudo fails."""
    text = _read_file(_SHADOW)
    if not any(line.startswith(f"{name}:") for line in text.splitlines()):
        status = os.lstat(_SHADOW)
        newline = "" if not text or text.endswith("\n") else "\n"
        _write_file(
            _SHADOW, f"{text}{newline}{name}:*:19000:0:99999:7:::\n", stat.S_IMODE(status.st_mode) if text else 0o640
        )
        if os.geteuid() == 0 and text:
            os.chown(_SHADOW, status.st_uid, status.st_gid)


def _make_home(uid: int, gid: int, *, privileged: bool) -> None:
    home = Path("/home") / USER
    if os.path.lexists(home):
        return
    home.mkdir()
    created = [home]
    for name in _SKELETON:
        text = _read_file(f"/etc/skel/{name}")
        if text:
            _write_file(str(home / name), text, 0o644)
            created.append(home / name)
    for path in created:
        if privileged:
            os.chown(path, uid, gid)
        path.chmod((0o755 if path == home else 0o644) if privileged else (0o777 if path == home else 0o666))


def _find_user_name(requested: str) -> str | None:
    """Return the name of an existing account for `name`, `uid`, `name:group` or `uid:gid`, or None."""
    user = requested.partition(":")[0]
    rows = [row for row in _read_rows(_PASSWD) if len(row) > 2]
    return next((row[0] for row in rows if row[0] == user), None) or next(
        (row[0] for row in rows if user.isdigit() and row[2] == user), None
    )


def _read_rows(path: str) -> list[list[str]]:
    return [line.split(":") for line in _read_file(path).splitlines() if line.strip()]


def _format_rows(rows: list[list[str]]) -> str:
    return "".join(":".join(row) + "\n" for row in rows)


# Trust ------------------------------------------------------------------------------------------------------------------------


def _install_trust(trust: Trust, host_bundle: str) -> None:
    """Add this machine's certificate authorities and package client settings, unless the image has its own settings."""
    if trust.is_empty:
        return
    if trust.certificates:
        present = [path for path in _BUNDLES if Path(path).is_file() and not Path(path).is_symlink()]
        if not _read_file(BUNDLE):
            _ensure_parents(BUNDLE)
            _write_file(BUNDLE, next((text for path in present if (text := _read_file(path))), host_bundle), 0o644)
        for path in present:
            _write_file(path, _read_file(path) + "".join(f"\n{pem}\n" for pem in trust.certificates), 0o644)
    applicable = replace(
        trust,
        apt=trust.apt if Path("/etc/apt").is_dir() else (),
        pip=() if os.path.lexists("/etc/pip.conf") else trust.pip,
    )
    write_layer(applicable, Path("/"), Path("/"))


def _ensure_parents(path: str) -> None:
    walked = ""
    for part in path.strip("/").split("/")[:-1]:
        walked += f"/{part}"
        _ensure_folder(walked, 0o755)


# Files ------------------------------------------------------------------------------------------------------------------------


def _stat_or_make_directory(path: str) -> os.stat_result:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        Path(path).mkdir(mode=0o755)
        return os.lstat(path)


def _read_file(path: str) -> str:
    """Return the text of a regular file, or an empty string for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
            return ""
        return os.read(fd, _MAX_FILE_BYTES).decode(errors="surrogateescape")
    finally:
        os.close(fd)


def _write_file(path: str, text: str, mode: int) -> None:
    if os.path.lexists(path):
        Path(path).unlink()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode(errors="surrogateescape"))
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def parse_adapt_options(raw: Mapping[str, Any]) -> AdaptOptions:
    """Return the options from their JSON form."""

    def pairs(name: str) -> tuple[tuple[str, str], ...]:
        return tuple((key, value) for key, value in raw["trust"][name])

    certificates, env = tuple(raw["trust"]["certificates"]), raw["trust"]["env"]
    trust = Trust(certificates, pairs("apt"), pairs("pip"), pairs("npm"), env)
    return AdaptOptions(raw["user"], raw["path"], (), trust, raw["host_bundle"], raw["privileged"])
