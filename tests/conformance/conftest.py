"""The same tests for every driver. Root runs them with all drivers, and `test_rootless.py` runs them again as another user. In `make test`
the drivers in `OWN_FILES` run only the files listed there, because the other files would repeat the tests of another driver."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance import tiny
from tests.conformance.harness import DriverHarness, list_kinds
from tests.harness.cluster import HostProcess

OWN_FILES = {
    "namespace-plain": {"test_copies.py", "test_limits.py"},
    "fake": {"test_lifecycle.py", "test_unreachable.py"},
    "cluster": {"test_lifecycle.py", "test_restart.py"},
}
"""The files that these drivers run in `make test`. The store of plain directories copies and counts in its own way."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent:
            kind = item.callspec.params.get("kind") if hasattr(item, "callspec") else None
            if kind in OWN_FILES and item.path.name not in OWN_FILES[kind]:
                item.add_marker(pytest.mark.slow)
            if pytest_asyncio.is_async_test(item):
                item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


def _reason_to_skip(kind: str) -> str | None:
    """Return why this driver can't be tested here, or None."""
    if kind == "fake":
        try:
            import sandyard.engine.drivers.fake.driver  # noqa: F401, PLC0415
        except ImportError as error:
            return f"the fake driver can't be loaded: {error}"
    return None


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root file system, or the one that was passed to the rootless run."""
    given = os.environ.get("SANDYARD_TINY_TEMPLATE")
    if given:
        return Path(given)
    root = tmp_path_factory.mktemp("template") / "rootfs"
    tiny.build(root)
    return root


@pytest.fixture(
    scope="session",
    # test_gvisor.py tests the most important part of gVisor in every run
    params=[pytest.param(kind, marks=pytest.mark.slow) if kind == "gvisor" else kind for kind in list_kinds()],
)
def kind(request: pytest.FixtureRequest) -> str:
    reason = _reason_to_skip(request.param)
    if reason:
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="session")
def data_dir(kind: str, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One directory for all tests of a driver, as in an engine: what one test left behind would break the next."""
    path = tmp_path_factory.mktemp(kind)
    with HostProcess.start(path, template) if kind == "cluster" else contextlib.nullcontext():
        yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_harness(kind: str, data_dir: Path, template: Path) -> AsyncIterator[DriverHarness]:
    """One for all tests of a file, because opening a driver takes longer than most of them."""
    driver_harness = DriverHarness(kind, data_dir, (str(template),))
    await driver_harness.open()
    yield driver_harness
    await driver_harness.close()


@pytest_asyncio.fixture(loop_scope="module")
async def harness(open_harness: DriverHarness) -> AsyncIterator[DriverHarness]:
    """An open driver without sandboxes."""
    if open_harness.is_closed:  # by the test before
        await open_harness.open()
    if open_harness.kind == "gvisor" and open_harness.isolation not in open_harness.driver.capabilities.isolation:
        pytest.skip(open_harness.driver.capabilities.missing["gvisor"])
    yield open_harness
    await open_harness.clear()
