"""Take over a host: find out which of the engine's sandboxes still exist, and remove everything else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from sandyard.engine.contract import Condition, Handle
from sandyard.engine.drivers.machine import policies, processes
from sandyard.engine.drivers.namespace import pause
from sandyard.engine.drivers.namespace.exit_watcher import ExitWatcher, remove_run_directory
from sandyard.engine.drivers.namespace.host import Host
from sandyard.engine.drivers.namespace.record import Life, Record, parse_handle, parse_record
from sandyard.engine.drivers.namespace.suspender import Suspender
from sandyard.kit.errors import SandyardError


async def take_over(
    host: Host,
    watcher: ExitWatcher,
    suspender: Suspender,
    records: dict[str, Record],
    *,
    keep: Collection[Handle],
    snapshots: Collection[str],
) -> Mapping[str, Condition]:
    """Fill `records` with the sandboxes in `keep`, end and remove all others, and return the condition of each."""
    for handle in keep:
        if handle.id not in records:
            _, _, life = parse_handle(handle)
            records[handle.id] = parse_record(handle)
            if life is not None and not host.instance.is_copy:
                _adopt(host, watcher, records[handle.id], life)
    kept = {handle.id for handle in keep}
    alive = {name: record for name, record in records.items() if name in kept and record.alive}
    for name in set(records) - kept:  # from an earlier `open`; the sweep has ended them
        records.pop(name).end_reason = "removed: the engine does not know it"
    await host.sweep_processes({name: record.life.pid for name, record in alive.items() if record.life})
    _sweep_run_directories(host.run_dir, alive)
    await _open_network(host, alive)
    await host.store.sweep(kept, snapshots)
    suspended = await suspender.take_over([name for name in kept - set(alive) if host.store.has(name)])
    conditions: dict[str, Condition] = {}
    for name in kept:
        if name in alive:
            alive[name].frozen = pause.is_paused(host, alive[name])
            conditions[name] = Condition.FROZEN if alive[name].frozen else Condition.RUNNING
        elif name in suspended:
            conditions[name] = Condition.SUSPENDED
        elif host.store.has(name):
            conditions[name] = Condition.STOPPED
        else:
            conditions[name] = Condition.ABSENT
            del records[name]
    return conditions


def _adopt(host: Host, watcher: ExitWatcher, record: Record, life: Life) -> None:
    """Adopt a running sandbox. It is the same process if it started at the same time, and belongs to this sandbox if it
    is in its cgroup and has its files. Without cgroups its command line identifies it."""
    pidfd = processes.open_pidfd(life.pid, life.start)
    if pidfd is None:
        return
    own_pids = host.cgroups.list_pids(record.id) if host.cgroups.hierarchies else processes.find_by_title(host.title)
    if life.pid not in own_pids or not host.store.has(record.id):
        os.close(pidfd)
        return
    host.slots.claim(life.slot)
    stderr_fd = -1
    with contextlib.suppress(OSError):  # without root its agent's descriptors are not accessible
        stderr_fd = os.open(f"/proc/{life.pid}/fd/2", os.O_RDONLY | os.O_CLOEXEC)
    watcher.watch(record, life, pidfd, stderr_fd, zygote_reports=False)


def _sweep_run_directories(run: Path, alive: Mapping[str, Record]) -> None:
    for entry in list(os.scandir(run)):
        if entry.name not in alive and entry.is_dir(follow_symlinks=False):
            remove_run_directory(Path(entry.path))


async def _open_network(host: Host, alive: Mapping[str, Record]) -> None:
    if host.network is None:
        return
    slots = {record.life.slot: name for name, record in alive.items() if record.life}
    await host.network.open(list(slots))
    if "network" in host.network.missing:  # without namespaces, sandboxes get their own loopback elsewhere
        host.disable_network()
        return
    for slot, name in slots.items():
        with contextlib.suppress(SandyardError):  # without any network; `missing` contains the reason
            await host.network.set_policy(slot, policies.load(host.run_dir / name))
