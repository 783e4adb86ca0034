"""Find out what the driver can do on this machine by opening it briefly. For `sandyard doctor`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from sandyard.engine.contract import Capabilities
from sandyard.engine.drivers import load
from sandyard.engine.drivers.namespace.driver import NamespaceDriver
from sandyard.engine.settings import EngineSettings

TRIAL_SECONDS = 1.5
"""Suspending to disk is tried with a small process, which takes a second where it works."""


async def open_briefly(folder: Path) -> Capabilities:
    """Open the driver on an empty directory and close it again. Raises SandyardError."""
    driver = load(EngineSettings(driver="namespace", data_dir=folder), folder)
    await driver.open((), ())
    try:
        if not isinstance(driver, NamespaceDriver):
            return driver.capabilities
        try:
            async with asyncio.timeout(TRIAL_SECONDS):
                return await driver.all_capabilities()
        except TimeoutError:
            able = driver.capabilities
            unknown = f"unknown after {TRIAL_SECONDS} s; an engine finds out after its start"
            return replace(able, missing={**able.missing, "suspend": unknown})
    finally:
        await driver.close()
