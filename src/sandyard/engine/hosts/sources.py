"""The sources of hosts that the settings name."""

from __future__ import annotations

import asyncio
import contextlib

from sandyard.engine.hosts.directory import Hosts
from sandyard.engine.hosts.enrollment import Enrollment
from sandyard.engine.hosts.kubernetes import source as kubernetes
from sandyard.engine.hosts.kubernetes.source import KubernetesMachines, KubernetesOptions
from sandyard.engine.hosts.machines import Machine, MachineSource, StaticMachines
from sandyard.engine.hosts.ray_cluster.source import RayMachines, RayOptions, require_ray
from sandyard.engine.hosts.supply import HostSupply
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database


async def open_supply(
    stack: contextlib.AsyncExitStack, settings: EngineSettings, hosts: Hosts, enrollment: Enrollment, database: Database
) -> HostSupply:
    """Start the supply of hosts and return it. Closing `stack` ends it. Raises UnsupportedError if Ray is needed and not installed,
    and InvalidInputError if the credentials of a source are incomplete."""
    sources: list[MachineSource] = [StaticMachines(hosts)]
    if settings.hosts_ray_address is not None and settings.hosts_ray_credentials is not None:
        require_ray()
        machines = RayMachines(
            RayOptions(
                settings.hosts_ray_address,
                settings.hosts_ray_credentials,
                settings.hosts_ray_port,
                enrollment.fingerprint,
            )
        )
        stack.push_async_callback(machines.close)
        machines.open()
        sources.append(machines)
    if settings.hosts_kubernetes_url is not None:
        options = KubernetesOptions(
            settings.hosts_kubernetes_url,
            settings.hosts_kubernetes_credentials,
            enrollment.address,
            enrollment.fingerprint,
        )

        def is_host(host_id: str, machine: Machine) -> bool:
            found = hosts.find_by_address(kubernetes.NAME, machine.address)
            return found is not None and found.record.id == host_id

        pods = await asyncio.to_thread(KubernetesMachines, options, is_host)
        stack.push_async_callback(pods.close)
        pods.open()
        sources.append(pods)
    supply = HostSupply(sources, hosts, enrollment, database)
    stack.push_async_callback(supply.close)
    supply.start()
    return supply
