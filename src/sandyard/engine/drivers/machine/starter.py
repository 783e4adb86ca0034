"""Start a sandbox: create its network, files, cgroups and first process, concurrently where possible, and remove all of
them if one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.machine import policies
from sandyard.engine.drivers.machine.errors import translate_os_error
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher, remove_run_directory
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Record
from sandyard.engine.drivers.machine.runtime import Starter, StartPlan, StartResources

T = TypeVar("T")
U = TypeVar("U")


async def start(
    machine: Machine,
    watcher: ExitWatcher,
    starter: Starter,
    record: Record,
    *,
    policy: NetworkPolicy,
    prepare_files: Callable[[], Awaitable[None]],
) -> None:
    """Start a sandbox. `prepare_files` creates its directory in the store. A failure leaves neither slot nor process;
    the caller removes that directory. Must not be cancelled: parts of it run in other processes and threads and cannot
    be interrupted."""
    slot = machine.slots.take()
    resources = StartResources(machine, record.id, starter.make_cgroup_limits(record.limits))
    try:
        policies.create_directory(machine.run_dir / record.id, policy)
        preparation = asyncio.ensure_future(gather_both(machine.acquire_network(slot, policy), prepare_files()))
        await asyncio.sleep(0)  # both run in threads by now, so create the cgroups in the meantime
        try:
            resources.create()
        finally:
            net, _ = await preparation
        layers = machine.find_layers(record.layers)
        plan = StartPlan(record.id, slot, layers, record.limits, net, record.mounts, record.containers)
        started = await starter.launch(plan, resources)
        watcher.watch(record, started.life, started.pidfd, resources.take("stderr"), reports_exit=started.reports_exit)
    except BaseException as error:
        await resources.remove()
        remove_run_directory(machine.run_dir / record.id)
        await watcher.free_slot(slot)
        if isinstance(error, OSError):
            raise translate_os_error(error, f"Could not start the sandbox {record.id}") from error
        raise
    finally:
        resources.close()


async def gather_both(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Run both concurrently and to completion, even if one fails."""
    one, two = await asyncio.gather(first, second, return_exceptions=True)
    for result in (one, two):
        if isinstance(result, BaseException):
            raise result
    return cast("T", one), cast("U", two)
