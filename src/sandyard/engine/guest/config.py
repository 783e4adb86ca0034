"""The agent's configuration, and the defaults that `POST /init` may change later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """Settings of an agent, which its driver chooses before it starts.

    `root` is the directory used as `/` in all paths of the protocol. With a root other than `/` (the fake driver,
    tests) processes run on the host as the agent's user, with their home and working directory below `root`.

    Without `switch_user`, everything runs as the agent's own user and belongs to it, whatever user a request specifies: for
    a user namespace with only one user.

    With `warm_up`, the agent runs a trivial command soon after it started to serve. The first real command is then a
    millisecond faster, but the agent uses about 0.9 MB more private memory: for sandboxes that wait in a pool.

    `keep_fds` are descriptors that stay open: every other inherited one above 2 is closed when serving starts.

    `memory_bytes`, `cpu_count` and `disk_bytes` are the totals that `/metrics` reports; None: those of the system.

    With `elevation`, the agent runs sudo for programs in the sandbox: for a kernel that ignores set-user-id bits (gVisor).

    With `max_processes`, the agent limits the number of processes itself: for a kernel of the sandbox's own (gVisor),
    whose processes the host cannot count.

    With `max_wait_s`, the agent looks for events at least this often, with a new epoll. On a busy machine, an epoll of gVisor
    sometimes never reports a descriptor again after a checkpoint.

    With `forbid_user_namespaces`, no program can become root of a new user namespace, because gVisor gives it all rights over
    the network of the sandbox.

    With `signal_resize` the agent itself tells the programs in a terminal that its size has changed, because gVisor does not.

    With `engine_address` and `engine_secret`, the agent accepts only TCP connections that come from this address and start
    with a proof that their sender knows the secret; see `engine_proof`.

    `container_service` is a command that the agent starts as root beside itself, with the id of the user who may create
    containers as the last argument; see `containers.service`.
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
    max_wait_s: float | None = None
    forbid_user_namespaces: bool = False
    signal_resize: bool = False
    engine_address: str | None = None
    engine_secret: bytes | None = field(default=None, repr=False)
    container_service: tuple[str, ...] = ()

    @property
    def has_default_root(self) -> bool:
        """Whether the sandbox's `/` is the agent's own `/`."""
        return self.root in ("", "/")


class Defaults:
    """The user, directory and environment of a process if the request does not specify them. Changed by `/init`."""

    __slots__ = ("env", "user", "workdir")

    def __init__(self, config: GuestConfig) -> None:
        self.user = config.default_user
        self.workdir = config.default_workdir
        self.env: dict[str, str] = {"E2B_SANDBOX": "true", **config.env}
