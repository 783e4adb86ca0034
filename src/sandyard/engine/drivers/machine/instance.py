"""The identity of this engine among those of the machine: a short name for its cgroups, interfaces and processes, and a
range of user ids.

Both are stored in the data directory, because sandboxes outlive the engine, and belong to that directory: a copy of it
is a new instance, which does not touch the original's resources on the machine. Ranges are claimed in a folder that all
engines of the machine see; a claim is valid as long as the data directory that made it contains the same range.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

# Above the ids of useradd and below 2^31, where a group may no longer ping. Others may use parts of it (systemd-nspawn,
# a directory service); no file on a disk ever belongs to such an id, so that is harmless.
FIRST_UID = 0x4000_0000
UIDS_PER_SLOT = 65_536
SLOTS_PER_BLOCK = 256
BLOCKS = 63

CLAIMS_DIR = Path("/run/sandyard/uids")


@dataclass(frozen=True, slots=True)
class Instance:
    """The contents of `instance.json`."""

    name: str
    first_uid: int
    slots: int  # how many sandboxes fit into the range
    cgroups: dict[str, str] = field(default_factory=dict)  # hierarchy → directory, as of the last run
    directory: str = ""  # the directory it was created for: its device and inode
    # Copied from another instance and not yet taken over: its handles refer to the original's processes.
    is_copy: bool = False

    def get_first_uid(self, slot: int) -> int:
        """Return the first id of a slot."""
        return self.first_uid + slot * UIDS_PER_SLOT

    def get_uids(self, slot: int) -> range:
        """Return the ids of a slot. No other user on the machine has them."""
        first = self.get_first_uid(slot)
        return range(first, first + UIDS_PER_SLOT)

    @property
    def uids(self) -> range:
        """The ids of all slots."""
        return range(self.first_uid, self.get_first_uid(self.slots))


def load(data_dir: Path, slots: int, claims: Path = CLAIMS_DIR) -> Instance:
    """Return the instance of this data directory, with a range for at least that many slots if the machine has one.
    Blocks briefly."""
    file = data_dir / "instance.json"
    known: Instance | None = None
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        known = Instance(**json.loads(file.read_text()))
    directory = _identify_directory(data_dir)
    is_copy = known is not None and known.directory not in {"", directory}
    if is_copy:  # the old name belongs to the original on this machine
        known = None
    elif known is not None and known.is_copy:
        is_copy = True  # an earlier start did not get as far as `mark_adopted`
    elif known is not None and known.directory != directory:
        known = replace(known, directory=directory)
        save(data_dir, known)
    wanted_blocks = min(-(-slots // SLOTS_PER_BLOCK), BLOCKS)  # rounded up
    if known is not None and known.slots >= wanted_blocks * SLOTS_PER_BLOCK and _claim(claims, known, data_dir):
        return known
    name = known.name if known else secrets.token_hex(4)
    for count in range(wanted_blocks, 0, -1):
        for block in range(BLOCKS - count + 1):
            first_uid = FIRST_UID + block * SLOTS_PER_BLOCK * UIDS_PER_SLOT
            candidate = Instance(
                name, first_uid, count * SLOTS_PER_BLOCK, known.cgroups if known else {}, directory, is_copy
            )
            try:
                save(data_dir, candidate)  # before the claim, because a claim without a matching file is void
            except OSError as error:
                if known is None or error.errno != errno.ENOSPC:
                    raise
                return known  # on a full disk it stays unchanged
            if _claim(claims, candidate, data_dir):
                return candidate
    # Too many engines: share the first range. Namespaces still isolate sandboxes, only their ids overlap.
    shared = Instance(name, FIRST_UID, SLOTS_PER_BLOCK, known.cgroups if known else {}, directory, is_copy)
    save(data_dir, shared)
    return shared


def _identify_directory(data_dir: Path) -> str:
    """Return a value that differs between a directory and its copies, but stays when it is renamed."""
    status = data_dir.stat()
    return f"{status.st_dev}:{status.st_ino}"


def save(data_dir: Path, instance: Instance) -> None:
    """Write `instance.json`, atomically."""
    file, text = data_dir / "instance.json", json.dumps(asdict(instance))
    with contextlib.suppress(FileNotFoundError):
        if file.read_text() == text:  # so that an engine can start on a full disk
            return
    partial = data_dir / ".instance.partial"
    partial.write_text(text)
    partial.rename(file)


def mark_adopted(data_dir: Path, instance: Instance) -> Instance:
    """Mark everything in the directory as this instance's own."""
    if instance.is_copy:
        instance = replace(instance, is_copy=False)
        save(data_dir, instance)
    return instance


def set_cgroups(instance: Instance, folders: dict[str, str]) -> Instance:
    """Return the instance with these directories. Saves nothing."""
    return replace(instance, cgroups=dict(folders))


def release(instance: Instance, data_dir: Path, claims: Path = CLAIMS_DIR) -> None:
    """Release the range, because nothing of this instance is running. The next `load` claims it again, or another
    one."""
    for block in _list_blocks(instance):
        with contextlib.suppress(OSError):
            if _find_holder(claims / str(block)) == data_dir:
                (claims / str(block)).unlink()


def _claim(claims: Path, instance: Instance, data_dir: Path) -> bool:
    """Claim every block of the range, or none. Return whether they are claimed."""
    taken: list[Path] = []
    try:
        claims.mkdir(parents=True, exist_ok=True)
        with _lock_claims(claims):
            for block in _list_blocks(instance):
                if not _claim_block(claims / str(block), instance, data_dir):
                    for path in taken:
                        path.unlink(missing_ok=True)
                    return False
                taken.append(claims / str(block))
    except PermissionError:  # without root there is one range, the user's own
        return True
    return True


@contextlib.contextmanager
def _lock_claims(claims: Path) -> Iterator[None]:
    """Exclude other engines that start at the same time: a claim that is still being written looks void to them."""
    fd = os.open(claims, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _list_blocks(instance: Instance) -> range:
    """Return the numbers of the blocks that its range consists of."""
    first = (instance.first_uid - FIRST_UID) // (SLOTS_PER_BLOCK * UIDS_PER_SLOT)
    return range(first, first + instance.slots // SLOTS_PER_BLOCK)


def _claim_block(claim: Path, instance: Instance, data_dir: Path) -> bool:
    """Claim one block, if no other data directory holds it. Return whether it is claimed."""
    for _ in range(3):
        try:
            fd = os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            holder = _find_holder(claim)
            if holder is not None:
                return holder == data_dir
            claim.unlink(missing_ok=True)
            continue
        with os.fdopen(fd, "w") as file:
            json.dump({"data_dir": str(data_dir), "name": instance.name}, file)
        return True
    return False


def _find_holder(claim: Path) -> Path | None:
    """Return the data directory that still confirms this claim, or None."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        claimed = json.loads(claim.read_text())
        holder = Path(claimed["data_dir"])
        instance = Instance(**json.loads((holder / "instance.json").read_text()))
        if instance.name == claimed["name"] and int(claim.name) in _list_blocks(instance):
            return holder
    return None
