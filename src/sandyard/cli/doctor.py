"""`sandyard doctor`: report what this machine can do for sandboxes and, for anything missing, why and how to fix it."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import click

from sandyard.cli.doctor_platform import check_platform
from sandyard.cli.findings import Finding
from sandyard.cli.output import echo
from sandyard.cli.setup.packages import format_install_command, list_missing_packages
from sandyard.kit.errors import SandyardError


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory to check, as given to `sandyard up`.",
)
def doctor(data_dir: Path | None) -> None:
    """Check what this machine supports and what is missing.

    The driver is opened briefly on an empty directory, so its capabilities are tested and not guessed.
    The exit code is 1 if sandboxes cannot run here or the platform cannot start with its current configuration.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - not needed for --help

    healthy = _print_findings("Machine", _check_machine())
    with ThreadPoolExecutor(1) as pool:
        # network checks run while the driver is tested
        platform_findings = pool.submit(lambda: list(check_platform(data_dir)))
        healthy = _print_findings("Sandboxes", chain(_check_sandboxes(), _check_layer_store())) and healthy
        _print_findings("Templates", _check_templates())
        configured = _print_findings("Platform", platform_findings.result())
    if missing := list_missing_packages():
        echo(f"To install missing packages: {format_install_command(missing)}")
    if not configured:
        echo("The platform cannot start yet.")
    echo("Sandboxes can run here." if healthy else "Sandboxes cannot run here yet.")
    sys.exit(0 if healthy and configured else 1)


def _print_findings(title: str, findings: Iterable[Finding]) -> bool:
    """Print the findings. Return True if nothing vital is missing."""
    healthy = True
    echo(title)
    for finding in findings:
        healthy = healthy and (finding.ok or not finding.vital)
        mark = click.style("ok     ", fg="green") if finding.ok else click.style("missing", fg="yellow")
        echo(f"  {mark}  {finding.name}: {finding.detail}")
    return healthy


def _check_machine() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    yield Finding("system", sys.platform == "linux", system, vital=True)
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024 // 1024
    yield Finding("size", True, f"{cores} cores, {memory} MiB of memory")
    yield Finding(
        "root",
        os.geteuid() == 0,
        "the engine runs with full capabilities"
        if os.geteuid() == 0
        else "without root, sandboxes have no limits, no firewall and no network of their own. Run with sudo",
    )


def _check_sandboxes() -> Iterator[Finding]:
    from sandyard.engine.contract import Isolation  # noqa: PLC0415 - slow to load
    from sandyard.engine.drivers.capability_check import check_capabilities  # noqa: PLC0415 - slow to load
    from sandyard.engine.drivers.machine.net import probe  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="sandyard-doctor-") as folder:
        try:
            capabilities = asyncio.run(check_capabilities(Path(folder)))
        except SandyardError as error:
            yield Finding("driver", False, error.message, vital=True)
            return
    yield Finding("driver", True, "namespaces work", vital=True)
    yield Finding(
        "pause", capabilities.freeze, capabilities.missing.get("freeze", "processes can be paused and stay in memory")
    )
    yield Finding(
        "memory to disk",
        Isolation.NAMESPACE in capabilities.suspend,
        capabilities.missing.get("suspend", "paused sandboxes can be moved to disk to free memory"),
    )
    yield Finding(
        "gVisor",
        Isolation.GVISOR in capabilities.isolation,
        capabilities.missing.get("gvisor", "sandboxes can run on a kernel of their own (isolation level gvisor)"),
    )
    for level in sorted(capabilities.isolation):
        usable = "sandboxes that ask for it can run Docker"
        if level is Isolation.NAMESPACE:
            usable += ", if SANDYARD_ALLOW_CONTAINERS=true"
        reason = capabilities.missing.get(f"containers.{level}", usable)
        yield Finding(f"containers ({level})", level in capabilities.containers, reason)
    copies = {"cow": "copy-on-write: a fork takes milliseconds", "copy": "changed files are copied"}
    detail = capabilities.missing.get("live_copy") or capabilities.missing.get("cow") or copies[capabilities.live_copy]
    yield Finding("copies", capabilities.live_copy == "cow", detail)
    for limit in ("memory", "cpu", "pids", "disk"):
        ok = limit in capabilities.limits
        yield Finding(
            f"{limit} limit", ok, "enforced" if ok else capabilities.missing.get(limit, "cannot be enforced here")
        )
    yield Finding(
        "internet",
        capabilities.egress,
        capabilities.missing.get("egress", "available to sandboxes, per their network policies"),
    )
    reported = {"freeze", "suspend", "gvisor", "live_copy", "cow", "memory", "cpu", "pids", "disk", "egress"}
    reported |= {f"containers.{level}" for level in Isolation}
    for name in capabilities.missing.keys() - reported:
        yield Finding(name, False, capabilities.missing[name])
    if os.geteuid() == 0:
        for found in probe():
            yield Finding(found.name, found.ok, found.detail)


def _check_layer_store() -> Iterator[Finding]:
    from sandyard.engine.layers.service import check_store, open_store  # noqa: PLC0415 - slow to load
    from sandyard.engine.settings import EngineSettings  # noqa: PLC0415

    async def check(settings: EngineSettings) -> str:
        store = open_store(settings)
        try:
            await check_store(store)
        finally:
            await store.close()
        return store.location

    try:
        settings = EngineSettings.load()
        if settings.layer_store is None:
            yield Finding(
                "layer store", True, "not set up: snapshots are lost with this machine (SANDYARD_LAYER_STORE)"
            )
            return
        location = asyncio.run(check(settings))
    except SandyardError as error:
        yield Finding("layer store", False, error.message)
    else:
        yield Finding("layer store", True, f"snapshots are also stored in {location}")


def _check_templates() -> Iterator[Finding]:
    from sandyard.engine.templates.requirements import list_base_requirements  # noqa: PLC0415

    for requirement in list_base_requirements():
        yield Finding(requirement.name, requirement.met, "installed" if requirement.met else requirement.remedy)
