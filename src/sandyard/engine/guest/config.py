"""The agent's configuration, and the defaults that `POST /init` may change later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """`root` is the directory used as `/` in all paths of the protocol. With a root other than `/` (the fake driver,
    tests) processes run on the host as the agent's user, with their home and working directory below `root`.

    Without `switch_user` everything runs as and belongs to the agent's own user, whatever user a request specifies: for
    a user namespace with only one user.

    With `warm_up` an agent runs one trivial command by itself soon after it started to serve. It then answers its first
    real command a millisecond earlier, but uses about 0.9 MB more private memory: for sandboxes that wait in a pool.

    `keep_fds` are descriptors the driver wants kept: every other inherited one above 2 is closed when serving starts.
    The three sizes are the totals that `/metrics` reports; a value of None is read from the system.

    With `elevation` the agent runs sudo for programs in the sandbox, because its kernel ignores set-user-id bits.

    `max_processes` limits the number of processes with the cgroup of this kernel: for a kernel that only this sandbox
    uses, so that nothing outside can do that.
    """

    root: str = "/"
    default_user: str = "user"
    default_workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    switch_user: bool = True
    warm_up: bool = False
    keep_fds: tuple[int, ...] = ()
    memory_bytes: int | None = None
    cpu_count: int | None = None
    disk_bytes: int | None = None
    elevation: bool = False
    max_processes: int | None = None

    @property
    def rooted(self) -> bool:
        """Whether the agent's own `/` is the sandbox's `/`."""
        return self.root in ("", "/")


class Defaults:
    """The user, directory and environment of a process if the request does not specify them. Changed by `/init`."""

    __slots__ = ("env", "user", "workdir")

    def __init__(self, config: GuestConfig) -> None:
        self.user = config.default_user
        self.workdir = config.default_workdir
        self.env: dict[str, str] = {"E2B_SANDBOX": "true", **config.env}
