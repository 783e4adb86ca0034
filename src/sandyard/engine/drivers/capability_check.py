"""Find out what the driver can do on this machine by opening it briefly. For `sandyard doctor`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from sandyard.engine.contract import Capabilities
from sandyard.engine.drivers import load_driver
from sandyard.engine.drivers.machine.driver import MachineDriver
from sandyard.engine.settings import EngineSettings

TRIAL_SECONDS = 1.5
"""The time limit for testing suspension to disk with a small process, which takes a second if it works."""


async def check_capabilities(folder: Path) -> Capabilities:
    """Return the capabilities of this machine: open the driver on an empty directory and close it again. Raises
    SandyardError."""
    driver = load_driver(EngineSettings(driver="namespace", data_dir=folder), folder)
    await driver.open((), ())
    try:
        if not isinstance(driver, MachineDriver):
            return driver.capabilities
        try:
            async with asyncio.timeout(TRIAL_SECONDS):
                return await driver.wait_for_capabilities()
        except TimeoutError:
            known = driver.capabilities
            unknown = f"unknown after {TRIAL_SECONDS} s; an engine tests it after its start"
            return replace(known, missing={**known.missing, "suspend": unknown})
    finally:
        await driver.close()
