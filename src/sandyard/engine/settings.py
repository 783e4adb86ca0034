"""Every setting of an engine, with its default. The CLI fills it from options, a service from `SANDYARD_…`
variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from sandyard.engine.contract import Limits
from sandyard.kit.connections import MOST
from sandyard.kit.secret import Secret
from sandyard.kit.settings import Settings, home, known_level

POOLED_BYTES = 3 << 20
"""What a ready sandbox costs."""
STARTED_BYTES = 256 << 20
"""What one with a start command running may well cost."""

DEADLINES: Mapping[str, float] = MappingProxyType(
    {
        "open": 600.0,
        "close": 30.0,
        "create": 30.0,
        "boot": 60.0,
        "fork": 60.0,
        "snapshot": 120.0,
        "delete_snapshot": 300.0,
        "create_volume": 30.0,
        "delete_volume": 300.0,
        "suspend": 300.0,
        "restore": 300.0,
        "stop": 30.0,
        "kill": 30.0,
        "init": 10.0,
        "stats": 3.0,
    }
)
"""Seconds after which a driver that has not answered counts as stuck; verbs not listed have `default_deadline_s`."""


def default_pool_size() -> int:
    """As many as fit into a sixty-fourth of the machine's memory: 128 at 24 GiB, enough for a burst of a hundred."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(128, max(4, memory // 64 // POOLED_BYTES))


def default_started_size() -> int:
    """As many as fit into a thirty-second of the machine's memory: 3 at 24 GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(8, max(1, memory // 32 // STARTED_BYTES))


def host_name(value: str) -> str:
    """Of a domain, in lower case; a port may follow."""
    name, colon, port = value.lower().removesuffix(".").partition(":")
    labels = name.split(".")
    if not all(re.fullmatch(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", label) for label in labels) or len(name) > 180:
        raise ValueError("is a domain such as sandboxes.example.com, without https:// and without a star")
    if labels[-1].isdigit():
        raise ValueError("is a domain, not an address: names below it are needed")
    if colon and not (port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("its port is a number from 1 to 65535")
    return name + colon + port


class EngineSettings(Settings):
    """Frozen. Sizes are in MiB, times in seconds."""

    variables: ClassVar[Mapping[str, str | None]] = {"deadlines": None}

    # where
    host: str = "127.0.0.1"
    port: int = Field(default=3000, ge=0, le=65535)
    data_dir: Path = Field(default_factory=lambda: home() / "engine")
    templates_dir: Path = Field(default_factory=lambda: home() / "templates")
    domain: Annotated[str, AfterValidator(host_name)] | None = None  # previews are below it; None: host:port
    tls_port: int | None = Field(default=None, ge=0, le=65535)  # HTTPS besides HTTP; None: HTTP alone
    tls_host: str | None = None  # where HTTPS listens; None: as `host`
    tls_cert: Path | None = None  # with its chain; None: the engine's own authority issues one
    tls_key: Path | None = None  # None: it is in the same file
    redirect_port: int | None = Field(
        default=None, ge=0, le=65535
    )  # plain HTTP that leads to HTTPS; 0: none; None: 80, if tls_port is 443
    driver: str = "auto"  # auto, namespace or fake
    api_keys: tuple[Secret, ...] = ()  # valid besides the stored ones

    # what a sandbox gets when its template does not say
    default_template: str = "base"
    carry_host_trust: bool = True  # the machine's own certificate authorities and package clients' settings go in
    add_languages: bool = True  # R and Java: into the code interpreter's template, when they are first asked for
    build_desktop: bool = True  # the template `desktop`, when it is first asked for
    default_memory_mb: int = Field(default=512, ge=16)
    default_cpu_count: int = Field(default=2, ge=1)
    default_disk_mb: int = Field(default=10240, ge=16)
    default_pids: int = Field(default=1024, ge=16)
    io_weight: int = Field(default=50, ge=10, le=1000)  # of all sandboxes' disk use, against 100 of everything else's
    io_read_mbps: int = Field(default=0, ge=0)  # of each sandbox, megabytes per second; 0: no limit
    io_write_mbps: int = Field(default=0, ge=0)
    # kernel memory that no cgroup counts: when the machine's has grown by so much (0: 2 % of its memory, at least 256 MB), sandboxes
    # that hold more than their share have their processes ended
    kernel_memory_growth_mb: int = Field(default=0, ge=0)
    netlink_buffers_mb: int = Field(default=64, ge=1)
    socket_buffers_mb: int = Field(default=64, ge=1)  # beyond those its cgroup is charged for and allowed
    tcp_orphans: int = Field(default=0, ge=0)  # connections closed with data not taken; 0: an eighth of the machine's
    file_locks: int = Field(default=100_000, ge=1000)

    # what a sandbox may reach
    lan: Literal["deny", "allow"] = "deny"  # private ranges and the host's neighbours
    resolv_conf: Path = Path("/etc/resolv.conf")  # whose name servers answer sandboxes' questions
    egress_ca_file: Path | None = None  # authorities trusted, besides the machine's, for hosts of network rules
    subnet: str | None = None  # for all sandboxes of this engine; None: a free one is found and remembered

    # images that templates are built from
    images_dirs: tuple[
        Path, ...
    ] = ()  # below which `oci:`, `oci-archive:` and `docker-archive:` are read; none: nowhere
    images_registries: tuple[str, ...] = ()  # host[:port]s that may be asked though they are not on the public internet
    images_insecure: tuple[str, ...] = ()  # host[:port]s that are spoken to over plain http
    images_max_mb: int = Field(default=16384, ge=1)  # of one image, unpacked
    images_max_files: int = Field(default=1_000_000, ge=1)
    images_keep_s: float = Field(default=7 * 24 * 3600, ge=0)  # layers that nothing needs go after this

    # how much fits
    max_connections: int = Field(default=MOST, ge=1)  # of clients; at most a third of the files the engine may open
    max_connections_per_address: int = Field(default=0, ge=0)  # 0: a quarter of all; loopback: three quarters
    max_sandboxes: int = Field(default=1000, ge=1)  # running at the same time
    memory_reserve_mb: int = Field(default=512, ge=0)  # of the machine's memory, kept free
    disk_reserve_mb: int = Field(default=2048, ge=0)  # of the data directory's disk, kept free
    max_timeout_s: float = Field(default=24 * 3600, gt=0)
    max_forks: int = Field(default=100, ge=1)
    max_volumes: int = Field(default=1000, ge=0)
    volume_size_mb: int = Field(default=10240, ge=16)  # each, where the store has quotas
    auto_resume_timeout_s: float = Field(default=60, ge=0)  # an auto-resumed sandbox lives at least this long

    # ready sandboxes
    pool_size: int = Field(default_factory=default_pool_size, ge=0)  # per template; 0 turns the pool off
    pool_started_size: int = Field(default_factory=default_started_size, ge=0)  # the same, with a start command running
    pool_idle_s: float = Field(default=600, gt=0)  # a template nobody asks for loses its pool after this
    start_patience_s: float = Field(default=60, gt=0)  # how long a start command may take until it is ready
    create_concurrency: int = Field(default=8, ge=1)  # creates the driver is asked for at the same time

    # building templates
    build_concurrency: int = Field(default=4, ge=1)  # builds at the same time; others wait
    build_timeout_s: float = Field(default=3600, gt=0)  # of a whole build
    build_layers_kept: int = Field(default=200, ge=0)  # in the cache; 0: only what templates need
    build_upload_mb: int = Field(default=2048, ge=1)  # of the files of one COPY
    build_files_kept_mb: int = Field(default=4096, ge=0)  # of uploaded files that nobody is about to use
    build_log_lines: int = Field(default=20_000, ge=100)  # of one build

    # upkeep
    suspend_after_s: float | None = 900  # paused this long: memory goes to disk, where the driver can
    metrics_interval_s: float = Field(default=5, gt=0)
    metrics_kept: int = Field(default=720, ge=1)  # samples per sandbox
    logs_kept: int = Field(default=1000, ge=1)  # entries per sandbox
    logs_retention_s: float = Field(default=24 * 3600, ge=0)  # of sandboxes that have ended
    idempotency_retention_s: float = Field(default=24 * 3600, ge=0)
    deadlines: Mapping[str, float] = Field(default_factory=lambda: dict(DEADLINES))
    default_deadline_s: float = Field(default=10, gt=0)
    kill_patience_s: float = Field(default=1, ge=0)  # how long a kill waits for a verb that is under way

    # the engine's own log
    log_level: Annotated[str, AfterValidator(known_level)] = "info"
    log_json: bool = False

    @field_validator("tls_host", "tls_cert", "tls_key", "redirect_port")
    @classmethod
    def _fitting(cls, value: Any, info: ValidationInfo) -> Any:
        if value not in (None, 0) and info.data.get("tls_port") is None:
            raise ValueError("needs a tls_port")
        if value is not None and info.field_name == "tls_key" and info.data.get("tls_cert") is None:
            raise ValueError("is the key of a certificate: name that as tls_cert")
        return value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _wrap_keys(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        return tuple(Secret(item) if isinstance(item, str) else item for item in value)

    @field_validator("images_dirs", "images_registries", "images_insecure", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @property
    def default_limits(self) -> Limits:
        return Limits(
            memory_mb=self.default_memory_mb,
            cpu_count=self.default_cpu_count,
            pids=self.default_pids,
            disk_mb=self.default_disk_mb,
        )

    def deadline(self, verb: str) -> float:
        return self.deadlines.get(verb, self.default_deadline_s)
