"""Take over the machine from an earlier engine: find out which sandboxes still exist, and remove everything else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from sandyard.engine.contract import Condition, Handle
from sandyard.engine.drivers.machine import pause, policies, processes
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher, remove_run_directory
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Life, Record, parse_handle, parse_record
from sandyard.engine.drivers.machine.runtime import Runtime
from sandyard.kit.errors import SandyardError


async def take_over(
    machine: Machine,
    watcher: ExitWatcher,
    runtimes: Collection[Runtime],
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
            if life is not None and not machine.instance.is_copy:
                _adopt(machine, watcher, records[handle.id], life)
    kept = {handle.id for handle in keep}
    alive = {name: record for name, record in records.items() if name in kept and record.alive}
    for name in set(records) - kept:  # from an earlier `open`; the sweep below ends them
        records.pop(name).end_reason = "removed: the engine does not know it"
    await machine.sweep_groups({name: record.life.slot for name, record in alive.items() if record.life})
    for runtime in runtimes:
        runtime.sweep({record.life.pid for record in alive.values() if record.life})
    _sweep_run_directories(machine.run_dir, alive)
    await _open_network(machine, alive)
    await machine.store.sweep(kept, snapshots)
    suspended: set[str] = set()
    for runtime in runtimes:
        stopped = [name for name in kept - set(alive) if records[name].driver == runtime.isolation.value]
        suspended |= await runtime.images.take_over([name for name in stopped if machine.store.has(name)])
    await _continue_processes(machine, runtimes, alive.values())
    conditions: dict[str, Condition] = {}
    for name in kept:
        if name in alive:
            conditions[name] = Condition.FROZEN if alive[name].frozen else Condition.RUNNING
        elif name in suspended:
            conditions[name] = Condition.SUSPENDED
        elif machine.store.has(name):
            conditions[name] = Condition.STOPPED
        else:
            conditions[name] = Condition.ABSENT
            del records[name]
    return conditions


def _adopt(machine: Machine, watcher: ExitWatcher, record: Record, life: Life) -> None:
    """Watch the sandbox if it is still running. It is the same process if it started at the same time, and belongs to
    this sandbox if it is in its cgroup and the sandbox has files. Without cgroups its command line identifies it."""
    pidfd = processes.open_pidfd(life.pid, life.start)
    if pidfd is None:
        return
    own_pids = (
        machine.cgroups.list_pids(record.id) if machine.cgroups.hierarchies else processes.find_by_title(machine.title)
    )
    if life.pid not in own_pids or not machine.store.has(record.id):
        os.close(pidfd)
        return
    machine.slots.claim(life.slot)
    stderr_fd = -1
    with contextlib.suppress(OSError):  # without root its agent's descriptors are not accessible
        stderr_fd = os.open(f"/proc/{life.pid}/fd/2", os.O_RDONLY | os.O_CLOEXEC)
    watcher.watch(record, life, pidfd, stderr_fd, reports_exit=False)


async def _continue_processes(machine: Machine, runtimes: Collection[Runtime], alive: Collection[Record]) -> None:
    """Let processes continue that are paused, except those of sandboxes that are frozen."""
    for record in alive:
        record.frozen = pause.is_paused(machine, record)
    for runtime in runtimes:
        running = [record for record in alive if record.driver == runtime.isolation.value and not record.frozen]
        await runtime.images.continue_processes(running)


def _sweep_run_directories(run: Path, alive: Mapping[str, Record]) -> None:
    for entry in list(os.scandir(run)):
        if entry.name not in alive and entry.is_dir(follow_symlinks=False):
            remove_run_directory(Path(entry.path))


async def _open_network(machine: Machine, alive: Mapping[str, Record]) -> None:
    if machine.network is None:
        return
    slots = {record.life.slot: name for name, record in alive.items() if record.life}
    await machine.network.open(list(slots))
    if "network" in machine.network.missing:  # without namespaces, sandboxes get their own loopback elsewhere
        machine.disable_network()
        return
    for slot, name in slots.items():
        with contextlib.suppress(SandyardError):  # without any network; `missing` contains the reason
            await machine.network.set_policy(slot, policies.load(machine.run_dir / name))
