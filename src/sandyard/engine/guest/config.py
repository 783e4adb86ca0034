"""What an agent is told before it serves, and what `POST /init` may change afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """`root` is a directory that stands for `/` in every path of the protocol. With another root than `/` (the fake
    driver, tests) processes run on the host as whoever runs the agent, with their home and working directory below
    `root`.

    Without `switch_user` everything runs as and belongs to the agent's own user, whatever user a request names: for a
    user namespace in which there is no other.

    With `warm_up` an agent runs one trivial command by itself soon after it has begun to serve. It then answers its
    first real one a millisecond earlier, and has about 0.9 MB more of its memory to itself: for sandboxes that wait
    in a pool.

    `keep_fds` are descriptors the driver wants kept: every other inherited one above 2 is closed when serving starts.
    The three sizes are what `/metrics` reports as totals; what is None is read from the system.
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

    @property
    def rooted(self) -> bool:
        """Whether the agent's own `/` is the sandbox's `/`."""
        return self.root in ("", "/")


class Defaults:
    """Who runs a process, where and with which environment when the request does not say so. Changed by `/init`."""

    __slots__ = ("env", "user", "workdir")

    def __init__(self, config: GuestConfig) -> None:
        self.user = config.default_user
        self.workdir = config.default_workdir
        self.env: dict[str, str] = {"E2B_SANDBOX": "true", **config.env}
