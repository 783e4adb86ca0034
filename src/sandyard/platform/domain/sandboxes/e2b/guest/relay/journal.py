"""The journal of a command: a directory on the disk, or in memory if the disk is full."""

import errno
import fcntl
import os

BASES = ("/tmp/.sandyard", "/dev/shm/.sandyard")  # the second one is used when the disk is full
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def list_journal_folders(name: str) -> "list[str]":
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
    first, second = list_journal_folders(name)
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
        os.mkdir(list_journal_folders(name)[1], 0o755)
    except OSError:
        raise reason from None
    return list_journal_folders(name)[1]


def find_journal(name: str) -> "str | None":
    """Return the journal. If there are two, the one in which something was started."""
    found = [path for path in list_journal_folders(name) if os.path.isdir(path)]
    for path in found:
        try:
            if os.stat(os.path.join(path, "lock")).st_size:
                return path
        except OSError:
            pass
    return found[0] if found else None


def get_relay_pid(folder: str) -> "int | None":
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
    for folder in list_journal_folders(name):
        try:
            with open(os.path.join(folder, "exit")) as file:
                return file.read()
        except OSError:
            pass
    return None


def is_open_file(path: str, fd: int) -> bool:
    """Return whether the path still names this open file. False if it was removed or replaced."""
    try:
        found, opened = os.stat(path), os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


def write_file(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
