"""All settings of an engine with their defaults. The CLI fills them from options, a service from `SANDYARD_…` variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from sandyard.engine.contract import Isolation, Limits
from sandyard.kit.connections import MAX_CONNECTIONS
from sandyard.kit.secret import Secret
from sandyard.kit.settings import get_default_data_dir, validate_log_level
from sandyard.kit.telemetry import TelemetrySettings

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
        "move": 900.0,
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
        "init": 30.0,  # on a busy machine, a fork with memory first reads its pages from the disk
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


class EngineSettings(TelemetrySettings):
    """The engine's configuration. Frozen. Sizes are in MiB, times in seconds."""

    variables: ClassVar[Mapping[str, str | None]] = {"deadlines": None, "database_url": "SANDYARD_ENGINE_DATABASE_URL"}

    # Network addresses and directories
    host: str = "127.0.0.1"
    """Address to listen on with HTTP."""
    port: int = Field(default=3000, ge=0, le=65535)
    """Port to listen on with HTTP; 0 selects a free port."""
    data_dir: Path = Field(default_factory=lambda: get_default_data_dir() / "engine")
    """Directory of the engine's data."""
    database_url: str | None = Field(default=None, pattern=r"^postgres(ql)?://", max_length=1000)
    """`postgresql://user:password@host/database` for PostgreSQL 15 or newer, so that another engine can stand by. It may be the
    platform's database. None: SQLite in the data directory."""
    templates_dir: Path = Field(default_factory=lambda: get_default_data_dir() / "templates")
    """Directory of templates, shared by all engines of the machine."""
    domain: Annotated[str, AfterValidator(validate_domain)] | None = None
    """Serve the API at `api.DOMAIN` and sandboxes at `{port}-{sandbox}.DOMAIN`. None: `host:port`, and `localhost` for
    previews."""
    tls_port: int | None = Field(default=None, ge=0, le=65535)
    """Also serve HTTPS on this port. None: HTTP only."""
    tls_host: str | None = None
    """Address to listen on with HTTPS. None: the same as `host`; with `sandyard up`, loopback."""
    tls_cert: Path | None = None
    """File with the certificate and its chain, reloaded when it changes. None: issued by the engine's own authority."""
    tls_key: Path | None = None
    """File with its private key. None: the key is in the certificate's file."""
    redirect_port: int | None = Field(default=None, ge=0, le=65535)
    """Redirect plain HTTP on this port to HTTPS; 0: do not. None: 80 if the TLS port is 443."""
    driver: str = "auto"
    """`auto`, `namespace`, or `fake`, which has no isolation and is for tests."""
    allow_containers: bool | Literal["gvisor"] = "gvisor"
    """Let sandboxes that ask for it run containers: only with gVisor (`gvisor`), without it too (`true`), or not at all
    (`false`). `true` makes more of the host's kernel reachable: do not set it if you would not give every user an
    account on the machine."""
    min_isolation: Isolation = Isolation.NAMESPACE
    """The weakest isolation that new sandboxes may have: `namespace` or `gvisor`."""
    runsc_path: Path | None = None
    """gVisor's program `runsc`, if it is neither in the PATH nor installed by `sandyard setup gvisor`."""
    api_keys: tuple[Secret, ...] = ()
    """API keys that are valid in addition to the stored ones, separated by commas."""

    # Other machines that run sandboxes for this engine
    join_address: str | None = Field(default=None, max_length=253)
    """Address or name by which they reach this machine to join. None: this machine is the only one."""
    join_port: int = Field(default=3010, ge=0, le=65535)
    """Port that they join on."""
    join_host: str | None = None
    """Address that this port listens on. None: the address above."""
    hosts_ray_address: str | None = Field(default=None, pattern=r"^[0-9A-Za-z_.:\[\]-]+:[0-9]+$", max_length=300)
    """`ADDRESS:PORT` of a Ray cluster whose nodes with the resource `sandyard` become hosts. This machine must be a node
    too. None: hosts only join one by one. Requires the extra `ray`, `join_address` and `hosts_ray_credentials`."""
    hosts_ray_credentials: Path | None = None
    """Folder with this machine's token and certificates for Ray, from `sandyard host ray credentials`."""
    hosts_ray_port: int = Field(default=3011, ge=1, le=65535)
    """Port of the host services on Ray's nodes."""
    hosts_kubernetes_url: str | None = Field(default=None, pattern=r"^https://[^/]+/?$", max_length=300)
    """`https://…` of the API server of a Kubernetes cluster in which `deploy/kubernetes` runs the host service: the nodes become
    hosts. None: hosts only join one by one. Requires `join_address`."""
    hosts_kubernetes_credentials: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    """Folder with the files `token`, `ca.crt` and `namespace` of the engine's service account in that cluster."""
    local_sandboxes: bool = True
    """Run sandboxes on this machine too, not only on those that have joined."""
    checkpoint_interval_s: float = Field(default=600, ge=0)
    """How often the files of a running sandbox on another host are copied to this machine, in case the host is lost:
    when it is idle and has done something since the last time. Paused sandboxes are copied once. 0: none."""
    recover_after_s: float = Field(default=900, ge=0)
    """How long a host may not answer before it counts as lost: its sandboxes then continue on others from these copies. 0: hosts
    count as lost only when an administrator says so."""

    # Defaults of sandboxes, unless their template says otherwise
    default_template: str = "base"
    """Template of sandboxes whose client names none."""
    carry_host_trust: bool = True
    """Copy the machine's certificate authorities and package client settings into sandboxes."""
    add_languages: bool = True
    """Add R and Java to the code interpreter's template on first use."""
    build_desktop: bool = True
    """Build the template `desktop` when it is first requested."""
    build_docker: bool = True
    """Build the template `docker` when it is first requested."""
    default_memory_mb: int = Field(default=512, ge=16)
    """Memory limit of a sandbox. 2048 with `sandyard up`; OpenCode needs more than 1 GB."""
    default_cpu_count: int = Field(default=2, ge=1)
    """Processors of a sandbox."""
    default_disk_mb: int = Field(default=10240, ge=16)
    """Disk space of a sandbox."""
    default_pids: int = Field(default=1024, ge=16)
    """Processes and threads of a sandbox."""
    io_weight: int = Field(default=50, ge=10, le=1000)
    """Disk I/O weight of all sandboxes together, compared with 100 for everything else. Requires the BFQ scheduler or
    iocost."""
    io_read_mbps: int = Field(default=0, ge=0)
    """Megabytes per second that each sandbox may read from the store's disk; 0: no limit. With cgroup v1, I/O through
    the page cache is not limited."""
    io_write_mbps: int = Field(default=0, ge=0)
    """The same for writing."""
    kernel_memory_growth_mb: int = Field(default=0, ge=0)
    """Growth of the machine's kernel memory (memory that is neither free nor used by programs or files) after which the
    engine checks how much of it sandboxes hold. 0: 2 % of the memory, at least 256. If a sandbox then holds more
    than one of the following limits, all of its processes except the agent are killed, and the engine logs
    `sandbox_kernel_memory_exceeded`."""
    netlink_buffers_mb: int = Field(default=64, ge=1)
    """Netlink socket buffers that a sandbox may hold at that point."""
    socket_buffers_mb: int = Field(default=64, ge=1)
    """Other socket buffers, beyond what its cgroup is charged for and allowed."""
    tcp_orphans: int = Field(default=0, ge=0)
    """TCP connections that a sandbox may have closed with data that the peer has not received. If it has more, all of
    its processes except the agent are killed. 0: an eighth of the machine's `tcp_max_orphans`."""
    file_locks: int = Field(default=100_000, ge=1000)
    """File locks that a sandbox may hold at that point; a tenth of this if the machine has more locks than can be read
    in 3 s."""

    # What sandboxes may reach
    lan: Literal["deny", "allow"] = "deny"
    """Whether sandboxes may connect to private networks and the host's local network: `deny` or `allow`."""
    resolv_conf: Path = Path("/etc/resolv.conf")
    """File whose name servers answer DNS queries of sandboxes."""
    egress_ca_file: Path | None = None
    """File with certificate authorities for the hosts in `network.rules`, in addition to the machine's."""
    subnet: str | None = None
    """Network of all sandboxes of this engine. None: a free one is chosen and remembered."""

    # Images
    images_dirs: tuple[Path, ...] = ()
    """Directories below which builds may read `oci:`, `oci-archive:` and `docker-archive:` images, separated by commas.
    Empty: none."""
    images_registries: tuple[str, ...] = ()
    """`host[:port]` of registries in private networks that builds may also use, separated by commas."""
    images_insecure: tuple[str, ...] = ()
    """`host[:port]` of registries to contact over plain HTTP. Loopback always is."""
    images_max_mb: int = Field(default=16384, ge=1)
    """Size of one unpacked image."""
    images_max_files: int = Field(default=1_000_000, ge=1)
    """Files of one unpacked image."""
    images_keep_s: float = Field(default=7 * 24 * 3600, ge=0)
    """Time after which unused layers of images are deleted."""

    # Layer store
    layer_store: Annotated[str, AfterValidator(validate_layer_store)] | None = None
    """The absolute path of an existing directory, or `s3://bucket/prefix`. None: snapshots stay on this machine."""
    layer_store_endpoint: str | None = None
    """URL of an S3 server other than AWS."""
    layer_store_region: str | None = None
    """Its region."""
    layer_store_access_key: str | None = None
    """Access key. None: what boto3 finds, such as `AWS_ACCESS_KEY_ID`, a profile or a role."""
    layer_store_secret_key: Secret | None = None
    """Secret key of the access key."""
    layer_store_sweep_s: float = Field(default=3600, gt=0)
    """Interval at which unused blobs are deleted from the store."""
    layer_store_grace_s: float = Field(default=24 * 3600, ge=60)
    """Blobs younger than this are never deleted, because another engine may be publishing a snapshot with them. All
    engines of a store need the same value."""
    layer_max_mb: int = Field(default=65536, ge=1)
    """Size of one unpacked layer, for publishing and for fetching."""
    layer_max_files: int = Field(default=2_000_000, ge=1)
    """Files of one unpacked layer, for publishing and for fetching."""
    layer_keep_s: float = Field(default=7 * 24 * 3600, ge=0)
    """Time after which fetched snapshots and layers that nothing uses are deleted from this machine."""

    # Capacity limits
    max_connections: int = Field(default=MAX_CONNECTIONS, ge=1)
    """Client connections, at most a third of the files that the process may open."""
    max_connections_per_address: int = Field(default=0, ge=0)
    """Client connections of one address. 0: a quarter of all, and three quarters for loopback."""
    max_sandboxes: int = Field(default=1000, ge=1)
    """Sandboxes that run at the same time."""
    memory_reserve_mb: int = Field(default=512, ge=0)
    """Memory of the machine to keep free."""
    disk_reserve_mb: int = Field(default=2048, ge=0)
    """Disk space to keep free on the data directory's disk."""
    max_timeout_s: float = Field(default=24 * 3600, gt=0)
    """The longest timeout that a client may set for a sandbox."""
    max_forks: int = Field(default=100, ge=1)
    """Forks in one request."""
    max_volumes: int = Field(default=1000, ge=0)
    """Number of volumes."""
    volume_size_mb: int = Field(default=10240, ge=16)
    """Size of each volume, if the store supports quotas."""
    auto_resume_timeout_s: float = Field(default=60, ge=0)
    """Minimum lifetime of a sandbox that was resumed automatically."""

    # Pool
    pool_size: int = Field(default_factory=compute_pool_size, ge=0)
    """Ready sandboxes kept per template; 0: none. By default, as many as fit into 1/64 of the machine's memory, at most
    128."""
    pool_started_size: int = Field(default_factory=compute_started_pool_size, ge=0)
    """The same, for templates with a start command. By default, as many as fit into 1/32 of the memory, at most 8."""
    pool_gvisor_size: int = Field(default_factory=compute_gvisor_pool_size, ge=0)
    """The same, for sandboxes with gVisor. By default, as many as fit into 1/64 of the memory, at most 32."""
    pool_idle_s: float = Field(default=600, gt=0)
    """Time after which the pool of an unused template is removed."""
    start_patience_s: float = Field(default=60, gt=0)
    """Maximum time until a start command must be ready."""
    create_concurrency: int = Field(default=8, ge=1)
    """Sandboxes that are created at the same time, if no ready one is left."""

    # Building templates
    build_concurrency: int = Field(default=4, ge=1)
    """Concurrent builds; others are queued."""
    build_timeout_s: float = Field(default=3600, gt=0)
    """Timeout of a whole build."""
    build_layers_kept: int = Field(default=200, ge=0)
    """Layers kept in the build cache. Layers that a template needs are never removed. 0: only those."""
    build_upload_mb: int = Field(default=2048, ge=1)
    """Size of the files of one `COPY`."""
    build_files_kept_mb: int = Field(default=4096, ge=0)
    """Uploaded files that no build is using."""
    templates_keep_s: float = Field(default=7 * 24 * 3600, ge=3600)
    """Time after which replaced versions of templates that no sandbox, snapshot or template needs can be removed with
    `sandyard gc`."""
    build_log_lines: int = Field(default=20_000, ge=100)
    """Lines of the log of one build."""

    # Maintenance
    suspend_after_s: float | None = 900
    """Time after which the memory of paused sandboxes is moved to disk, if the driver supports it. None: never."""
    metrics_interval_s: float = Field(default=5, gt=0)
    """How often the usage of each sandbox is measured."""
    metrics_kept: int = Field(default=720, ge=1)
    """Measurements kept per sandbox."""
    logs_kept: int = Field(default=1000, ge=1)
    """Log entries kept per sandbox."""
    logs_retention_s: float = Field(default=24 * 3600, ge=0)
    """How long logs of sandboxes are kept after their end."""
    idempotency_retention_s: float = Field(default=24 * 3600, ge=0)
    """How long a repeated request with the same idempotency key gets the first response."""
    deadlines: Mapping[str, float] = Field(default_factory=lambda: dict(DEADLINES))
    """Time after which a call of the driver counts as stuck, by operation."""
    default_deadline_s: float = Field(default=10, gt=0)
    """The same, for operations without their own."""
    kill_patience_s: float = Field(default=1, ge=0)
    """Maximum time that a kill waits for an operation in progress."""

    # Log
    log_level: Annotated[str, AfterValidator(validate_log_level)] = "info"
    """The least severe level to log: `debug`, `info`, `warning` or `error`."""
    log_json: bool = False
    """Log one JSON object per line."""

    @model_validator(mode="after")
    def _check_ray(self) -> Self:
        if self.hosts_ray_address is None:
            return self
        if self.join_address is None or self.hosts_ray_credentials is None:
            raise ValueError("hosts_ray_address requires join_address and hosts_ray_credentials")
        if self.lan == "allow":
            raise ValueError("hosts_ray_address cannot be combined with lan=allow: sandboxes could reach Ray's ports")
        return self

    @model_validator(mode="after")
    def _check_kubernetes(self) -> Self:
        if self.hosts_kubernetes_url is not None and self.join_address is None:
            raise ValueError("hosts_kubernetes_url requires join_address")
        return self

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
