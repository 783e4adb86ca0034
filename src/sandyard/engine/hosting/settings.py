"""The configuration of a host service."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.settings import EngineSettings

TEMPLATES = "templates"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings of a host service. `tls` presents the certificate of this host and requires that of its engine. `machine`
    has the data directory, driver, network and limits, as for an engine on this machine; its other fields have no effect."""

    host_id: str
    address: str
    port: int
    tls: ssl.SSLContext
    machine: EngineSettings

    @property
    def data_dir(self) -> Path:
        return self.machine.data_dir

    def make_driver_settings(self) -> EngineSettings:
        """Return the settings of the driver."""
        return make_driver_settings(self.machine)


def make_driver_settings(machine: EngineSettings) -> EngineSettings:
    """Return the settings of a host's driver. Its templates come only from the engine: local ones of the same name may have
    different content."""
    return machine.model_copy(update={"templates_dir": machine.data_dir / TEMPLATES})
