"""Drivers run sandboxes. `load_driver` returns the driver that the settings select; no other part of the engine refers
to one by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sandyard.kit.errors import InvalidInputError

if TYPE_CHECKING:  # the processes that unpack images import this package, one for every layer, and need none of it
    from sandyard.engine.contract import Driver, Outbound, PublicNames
    from sandyard.engine.settings import EngineSettings

DRIVER_NAMES = ("namespace", "fake")
IMAGES, TRUST, LAYERS = "images", "trust", "layers"
"""Folders in the data directory: layers of images, layers that make sandboxes trust this engine's authority, and layers
of published snapshots that were fetched."""
FETCHED_SNAPSHOTS, FETCHED_TEMPLATES = "snapshots", "templates"
"""Folders in LAYERS: what sandboxes have written, and the layers below that."""
SPARE_SLOTS = 1024
"""Paused sandboxes do not count as running, but each keeps its slot on the machine."""


def load_driver(
    settings: EngineSettings, data_dir: Path, outbound: Outbound | None = None, public_names: PublicNames | None = None
) -> Driver:
    """Return the configured driver. `auto` is the driver for this machine. The fake driver isolates nothing and must be
    selected explicitly. Without `outbound` no network policy may have rules; without `public_names` sandboxes cannot
    reach the engine."""
    if settings.driver in ("auto", "namespace"):
        return _make_machine_driver(settings, data_dir, outbound, public_names)
    if settings.driver == "fake":
        from sandyard.engine.drivers.fake.driver import FakeDriver  # noqa: PLC0415 - only tests use it

        return FakeDriver(data_dir)
    raise InvalidInputError(f"Unknown driver {settings.driver!r}. Choose auto, {' or '.join(DRIVER_NAMES)}.")


def _make_machine_driver(
    settings: EngineSettings, data_dir: Path, outbound: Outbound | None, public_names: PublicNames | None
) -> Driver:
    from sandyard.engine.drivers.gvisor.runtime import GvisorRuntime  # noqa: PLC0415 - only where it is used
    from sandyard.engine.drivers.machine.cgroups import IoLimits  # noqa: PLC0415
    from sandyard.engine.drivers.machine.driver import MachineDriver  # noqa: PLC0415
    from sandyard.engine.drivers.machine.kernel import is_root  # noqa: PLC0415
    from sandyard.engine.drivers.machine.machine import DriverOptions  # noqa: PLC0415
    from sandyard.engine.drivers.machine.net import Network, NetworkSettings  # noqa: PLC0415
    from sandyard.engine.drivers.namespace.kernel_memory import KernelMemoryLimits  # noqa: PLC0415
    from sandyard.engine.drivers.namespace.runtime import NamespaceRuntime  # noqa: PLC0415

    network = NetworkSettings(
        lan=settings.lan,
        subnet=settings.subnet,
        resolv_conf=settings.resolv_conf,
        public_names=public_names,
        egress_ca_file=settings.egress_ca_file,
    )
    options = DriverOptions(
        data_dir,
        layer_roots=(settings.templates_dir, data_dir / IMAGES, data_dir / TRUST, data_dir / LAYERS),
        max_slots=settings.max_sandboxes + settings.pool_size + SPARE_SLOTS,
        network=(lambda instance, state: Network(instance, state, network, outbound)) if is_root() else None,
        io=IoLimits(settings.io_weight, settings.io_read_mbps * 1_000_000, settings.io_write_mbps * 1_000_000),
    )
    namespaces = NamespaceRuntime(
        KernelMemoryLimits(
            growth=settings.kernel_memory_growth_mb << 20,
            netlink=settings.netlink_buffers_mb << 20,
            locks=settings.file_locks,
            sockets=settings.socket_buffers_mb << 20,
            orphans=settings.tcp_orphans,
        )
    )
    return MachineDriver(options, [namespaces, GvisorRuntime(settings.runsc_path)], namespaces)
