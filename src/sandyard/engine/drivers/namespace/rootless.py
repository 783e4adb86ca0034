"""User ids for an engine without root: a range from /etc/subuid if there is one, otherwise only the user's own id."""

# ruff: noqa: ASYNC240 - a stat or a write to /proc takes microseconds

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from sandyard.kit.errors import SandyardError

ID_COUNT = 65_536


@dataclass(frozen=True, slots=True)
class Ids:
    """The number of user ids that a sandbox has. `missing` says why it is not `ID_COUNT`."""

    count: int
    missing: str | None = None


def _find_range(file: Path) -> int | None:
    """Return the first subordinate id of a range for this user that is large enough, or None."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    try:
        names = {str(os.getuid()), pwd.getpwuid(os.getuid()).pw_name}
    except KeyError:
        names = {str(os.getuid())}
    for line in lines:
        owner, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if owner in names and first.isdigit() and count.isdigit() and int(count) >= ID_COUNT - 1:
            return int(first)
    return None


async def map_ids(pid: int) -> Ids:
    """Map the ids of the user namespace that process `pid` has just created: 0 is this user."""
    users, groups = _find_range(Path("/etc/subuid")), _find_range(Path("/etc/subgid"))
    reason = None
    if users is None or groups is None:
        reason = f"no range of {ID_COUNT - 1} ids in /etc/subuid and /etc/subgid for this user: `usermod --add-subuids … --add-subgids …`"
    elif shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
        reason = "newuidmap is missing: install uidmap"
    else:
        problem = await _run_mapper("newuidmap", pid, os.getuid(), users) or await _run_mapper(
            "newgidmap", pid, os.getgid(), groups
        )
        if problem is None:
            return Ids(ID_COUNT)
        if Path(f"/proc/{pid}/uid_map").read_text().strip():
            raise SandyardError(f"The ids of the user namespace are only partly mapped: {problem}.")
        reason = f"newuidmap failed: {problem}"
    try:
        Path(f"/proc/{pid}/setgroups").write_text("deny")
        Path(f"/proc/{pid}/uid_map").write_text(f"0 {os.getuid()} 1")
        Path(f"/proc/{pid}/gid_map").write_text(f"0 {os.getgid()} 1")
    except OSError as error:
        raise SandyardError(f"Could not create a user namespace: {error.strerror}.") from error
    return Ids(1, f"a sandbox has only the user root: {reason}")


async def _run_mapper(program: str, pid: int, own: int, first: int) -> str | None:
    """Map 0 to the id `own`, and the others to those from `first` on. Return why it failed, or None."""
    arguments = [str(number) for number in (pid, 0, own, 1, 1, first, ID_COUNT - 1)]
    process = await asyncio.create_subprocess_exec(program, *arguments, stderr=asyncio.subprocess.PIPE)
    _, stderr = await process.communicate()
    return None if process.returncode == 0 else stderr.decode(errors="replace").strip()
