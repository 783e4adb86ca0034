"""All settings of an engine with their defaults. The CLI fills them from options, a service from `SANDYARD_…` variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from sandyard.engine.contract import Isolation, Limits
from sandyard.kit.connections import MOST
from sandyard.kit.secret import Secret
from sandyard.kit.settings import Settings, home, validate_log_level

POOLED_BYTES = 3 << 20
"""Memory used by a pooled sandbox."""
POOLED_GVISOR_BYTES = 40 << 20
"""The same, with gVisor: its kernel and its agent share no memory with those of other sandboxes."""
STARTED_BYTES = 256 << 20
"""Memory that a pooled sandbox with a running start command may use."""

DEADLINES: Mapping[str, float] = MappingProxyType(
    {
        "open": 600.0,
        "close": 30.0,
        "create": 30.0,
        "boot": 60.0,
        "fork": 60.0,
        "fork_with_memory": 300.0,
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
"""Seconds after which a driver call counts as stuck. Operations not listed use `default_deadline_s`."""


def compute_pool_size() -> int:
    """Return how many pooled sandboxes fit into 1/64 of the machine's memory: 128 at 24 GiB, enough for a burst of a
    hundred."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(128, max(4, memory // 64 // POOLED_BYTES))


def compute_gvisor_pool_size() -> int:
    """Return how many pooled gVisor sandboxes fit into 1/64 of the machine's memory: 9 at 24 GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(32, max(1, memory // 64 // POOLED_GVISOR_BYTES))


def compute_started_pool_size() -> int:
    """Return how many started sandboxes fit into 1/32 of the machine's memory: 3 at 24 GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(8, max(1, memory // 32 // STARTED_BYTES))


def validate_domain(value: str) -> str:
    """Validate a domain with an optional port and return it in lower case."""
    name, colon, port = value.lower().removesuffix(".").partition(":")
    labels = name.split(".")
    if not all(re.fullmatch(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", label) for label in labels) or len(name) > 180:
        raise ValueError("must be a domain such as sandboxes.example.com, without https:// and without a wildcard")
    if labels[-1].isdigit():
        raise ValueError("must be a domain, not an IP address, because subdomains are needed")
    if colon and not (port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("must have a port from 1 to 65535")
    return name + colon + port


def validate_layer_store(value: str) -> str:
    """Validate the location of a layer store."""
    if not value.startswith(("/", "s3://")):
        raise ValueError("must be the absolute path of a directory, or s3://bucket/prefix")
    return value.rstrip("/") or value


class EngineSettings(Settings):
    """The engine's configuration. Frozen. Sizes are in MiB, times in seconds."""

    variables: ClassVar[Mapping[str, str | None]] = {"deadlines": None}

    # Network addresses and directories
    host: str = "127.0.0.1"
    port: int = Field(default=3000, ge=0, le=65535)
    data_dir: Path = Field(default_factory=lambda: home() / "engine")
    templates_dir: Path = Field(default_factory=lambda: home() / "templates")
    domain: Annotated[str, AfterValidator(validate_domain)] | None = (
        None  # previews use subdomains of it; None: host:port
    )
    tls_port: int | None = Field(default=None, ge=0, le=65535)  # HTTPS in addition to HTTP; None: HTTP only
    tls_host: str | None = None  # address that HTTPS listens on; None: same as `host`
    tls_cert: Path | None = None  # with its chain; None: issued by the engine's own authority
    tls_key: Path | None = None  # None: the key is in the tls_cert file
    # Plain HTTP that redirects to HTTPS; 0: off; None: 80 if tls_port is 443
    redirect_port: int | None = Field(default=None, ge=0, le=65535)
    driver: str = "auto"  # auto, namespace or fake
    allow_containers: bool | Literal["gvisor"] = (
        "gvisor"  # sandboxes may ask for containers; gvisor: only at that level
    )
    min_isolation: Isolation = Isolation.NAMESPACE  # the weakest isolation that sandboxes may have
    runsc_path: Path | None = None  # gVisor's program; None: the installed one
    api_keys: tuple[Secret, ...] = ()  # valid in addition to the stored keys

    # Sandbox defaults when the template does not set a value
    default_template: str = "base"
    # Copy the machine's certificate authorities and package client settings into sandboxes
    carry_host_trust: bool = True
    add_languages: bool = True  # add R and Java to the code interpreter's template on first use
    build_desktop: bool = True  # build the template `desktop` on first use
    build_docker: bool = True  # build the template `docker` on first use
    default_memory_mb: int = Field(default=512, ge=16)
    default_cpu_count: int = Field(default=2, ge=1)
    default_disk_mb: int = Field(default=10240, ge=16)
    default_pids: int = Field(default=1024, ge=16)
    # Disk I/O weight of all sandboxes together, compared with 100 for everything else
    io_weight: int = Field(default=50, ge=10, le=1000)
    io_read_mbps: int = Field(default=0, ge=0)  # per sandbox, in MB/s; 0: no limit
    io_write_mbps: int = Field(default=0, ge=0)
    # Kernel memory that no cgroup accounts for. When the machine's total grows by this much (0: 2 % of its memory, at
    # least 256 MB), sandboxes that hold more than their share are stopped.
    kernel_memory_growth_mb: int = Field(default=0, ge=0)
    netlink_buffers_mb: int = Field(default=64, ge=1)
    socket_buffers_mb: int = Field(default=64, ge=1)  # in addition to the buffers that its cgroup is charged for
    # Closed connections with unread data; 0: an eighth of the machine's limit
    tcp_orphans: int = Field(default=0, ge=0)
    file_locks: int = Field(default=100_000, ge=1000)

    # What sandboxes may reach
    lan: Literal["deny", "allow"] = "deny"  # private ranges and the host's local network
    resolv_conf: Path = Path("/etc/resolv.conf")  # its name servers answer DNS queries of sandboxes
    egress_ca_file: Path | None = None  # authorities trusted for hosts of network rules, in addition to the machine's
    subnet: str | None = None  # for all sandboxes of this engine; None: a free one is chosen and remembered

    # Images that templates are built from
    # Folders from which `oci:`, `oci-archive:` and `docker-archive:` may be read; empty: none
    images_dirs: tuple[Path, ...] = ()
    # host[:port]s that are allowed although they are not on the public internet
    images_registries: tuple[str, ...] = ()
    images_insecure: tuple[str, ...] = ()  # host[:port]s that are accessed over plain HTTP
    images_max_mb: int = Field(default=16384, ge=1)  # of one unpacked image
    images_max_files: int = Field(default=1_000_000, ge=1)
    images_keep_s: float = Field(default=7 * 24 * 3600, ge=0)  # unused layers are deleted after this

    # The layer store, in which snapshots survive the loss of this machine
    layer_store: Annotated[str, AfterValidator(validate_layer_store)] | None = (
        None  # /path/of/a/directory or s3://bucket/prefix; None: snapshots stay on this machine
    )
    layer_store_endpoint: str | None = None  # URL of an S3 server other than AWS
    layer_store_region: str | None = None
    layer_store_access_key: str | None = None  # None: what boto3 finds, such as AWS_ACCESS_KEY_ID or a role
    layer_store_secret_key: Secret | None = None
    layer_store_sweep_s: float = Field(default=3600, gt=0)  # interval at which unused blobs are deleted
    # Blobs younger than this are never deleted, because another engine may be publishing a snapshot with them
    layer_store_grace_s: float = Field(default=24 * 3600, ge=60)
    layer_max_mb: int = Field(default=65536, ge=1)  # of one unpacked layer
    layer_max_files: int = Field(default=2_000_000, ge=1)
    layer_keep_s: float = Field(
        default=7 * 24 * 3600, ge=0
    )  # unused fetched snapshots and layers are deleted after this

    # Capacity limits
    # Client connections; at most a third of the engine's open file limit
    max_connections: int = Field(default=MOST, ge=1)
    # 0: a quarter of the total, or three quarters for loopback
    max_connections_per_address: int = Field(default=0, ge=0)
    max_sandboxes: int = Field(default=1000, ge=1)  # running at the same time
    memory_reserve_mb: int = Field(default=512, ge=0)  # machine memory to keep free
    disk_reserve_mb: int = Field(default=2048, ge=0)  # disk space to keep free on the data directory's disk
    max_timeout_s: float = Field(default=24 * 3600, gt=0)
    max_forks: int = Field(default=100, ge=1)
    max_volumes: int = Field(default=1000, ge=0)
    volume_size_mb: int = Field(default=10240, ge=16)  # per volume, if the store supports quotas
    auto_resume_timeout_s: float = Field(default=60, ge=0)  # minimum lifetime of an auto-resumed sandbox

    # Pool of ready sandboxes
    pool_size: int = Field(default_factory=compute_pool_size, ge=0)  # per template; 0 disables the pool
    # The same, for templates with a start command
    pool_started_size: int = Field(default_factory=compute_started_pool_size, ge=0)
    # The same, for sandboxes with gVisor
    pool_gvisor_size: int = Field(default_factory=compute_gvisor_pool_size, ge=0)
    pool_idle_s: float = Field(default=600, gt=0)  # the pool of an unused template is removed after this
    start_patience_s: float = Field(default=60, gt=0)  # how long a start command may take to become ready
    create_concurrency: int = Field(default=8, ge=1)  # concurrent create calls to the driver

    # Building templates
    build_concurrency: int = Field(default=4, ge=1)  # concurrent builds; others are queued
    build_timeout_s: float = Field(default=3600, gt=0)  # of a whole build
    build_layers_kept: int = Field(default=200, ge=0)  # in the cache; 0: only layers that templates need
    build_upload_mb: int = Field(default=2048, ge=1)  # size of the files of one COPY
    build_files_kept_mb: int = Field(default=4096, ge=0)  # uploaded files that no build is using
    build_log_lines: int = Field(default=20_000, ge=100)  # per build

    # Maintenance
    suspend_after_s: float | None = 900  # paused sandboxes are moved to disk after this, if the driver supports it
    metrics_interval_s: float = Field(default=5, gt=0)
    metrics_kept: int = Field(default=720, ge=1)  # samples per sandbox
    logs_kept: int = Field(default=1000, ge=1)  # entries per sandbox
    logs_retention_s: float = Field(default=24 * 3600, ge=0)  # for sandboxes that have ended
    idempotency_retention_s: float = Field(default=24 * 3600, ge=0)
    deadlines: Mapping[str, float] = Field(default_factory=lambda: dict(DEADLINES))
    default_deadline_s: float = Field(default=10, gt=0)
    kill_patience_s: float = Field(default=1, ge=0)  # how long a kill waits for an operation in progress

    # The engine's own log
    log_level: Annotated[str, AfterValidator(validate_log_level)] = "info"
    log_json: bool = False

    @field_validator("tls_host", "tls_cert", "tls_key", "redirect_port")
    @classmethod
    def _require_tls(cls, value: Any, info: ValidationInfo) -> Any:
        if value not in (None, 0) and info.data.get("tls_port") is None:
            raise ValueError("requires tls_port")
        if value is not None and info.field_name == "tls_key" and info.data.get("tls_cert") is None:
            raise ValueError("requires tls_cert, because it is the key of that certificate")
        return value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _wrap_keys(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        return tuple(Secret(item) if isinstance(item, str) else item for item in value)

    @field_validator("layer_store_secret_key", mode="before")
    @classmethod
    def _wrap_secret(cls, value: Any) -> Any:
        return Secret(value) if isinstance(value, str) else value

    @field_validator("images_dirs", "images_registries", "images_insecure", mode="before")
    @classmethod
    def _split_at_commas(cls, value: Any) -> Any:
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

    def get_deadline(self, operation: str) -> float:
        """Return the seconds after which a call of this driver operation counts as stuck."""
        return self.deadlines.get(operation, self.default_deadline_s)
