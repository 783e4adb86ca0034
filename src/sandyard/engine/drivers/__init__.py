"""Drivers run sandboxes. `load_driver` returns the driver that the settings select; no other part of the engine refers
to one by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sandyard.kit.errors import InvalidInputError

if TYPE_CHECKING:  # the processes that unpack images import this package, one for every layer, and need none of it
    from sandyard.engine.contract import Driver, Outbound, PublicNames
    from sandyard.engine.drivers.layer_names import LayerLocation
    from sandyard.engine.settings import EngineSettings

DRIVER_NAMES = ("namespace", "fake")
LAYERS, FETCHED_SNAPSHOTS, FETCHED_TEMPLATES, COPIES = "layers", "snapshots", "templates", "hosts"
"""The folder in the data directory for layers that were fetched. Folders in it: of published snapshots, what sandboxes
have written, and the layers below that; and copies of other hosts' layers."""
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

        return FakeDriver(data_dir, make_layer_locations(settings, data_dir))
    raise InvalidInputError(f"Unknown driver {settings.driver!r}. Choose auto, {' or '.join(DRIVER_NAMES)}.")


def make_layer_locations(settings: EngineSettings, data_dir: Path) -> dict[str, LayerLocation]:
    """Return where other parts of the engine than the driver create layers, by kind."""
    from sandyard.engine.drivers import layer_names as names  # noqa: PLC0415

    fetched = data_dir / LAYERS
    return {
        names.TEMPLATE: names.LayerLocation(settings.templates_dir.absolute(), "rootfs"),
        names.IMAGE: names.LayerLocation(data_dir / "images", "fs"),
        names.TRUST: names.LayerLocation(data_dir / "trust", "rootfs"),
        names.FETCHED_SNAPSHOT: names.LayerLocation(fetched / FETCHED_SNAPSHOTS, "fs"),
        names.FETCHED_TEMPLATE: names.LayerLocation(fetched / FETCHED_TEMPLATES, "fs"),
        names.REMOTE: names.LayerLocation(fetched / COPIES, "fs"),
    }


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
        layer_locations=make_layer_locations(settings, data_dir),
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
