"""The same tests for every driver. Root runs them with all drivers, and `test_rootless.py` runs them again as another user. In `make test`
the drivers that repeat another one run only what is theirs."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance import tiny
from tests.conformance.yard import Yard, kinds

OWN = {"namespace-plain": {"test_copies.py", "test_limits.py"}, "fake": {"test_lifecycle.py"}}
"""Where a driver is looked at in `make test`: the store of plain directories is another way to copy and to count."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent:
            kind = item.callspec.params.get("kind") if hasattr(item, "callspec") else None
            if kind in OWN and item.path.name not in OWN[kind]:
                item.add_marker(pytest.mark.slow)


def _lacking(kind: str) -> str | None:
    """Why this driver can't be tested here."""
    if kind == "fake":
        try:
            import sandyard.engine.drivers.fake.driver  # noqa: F401, PLC0415
        except ImportError as error:
            return f"the fake driver can't be loaded: {error}"
    return None


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root file system, or the one the rootless run was given."""
    given = os.environ.get("SANDYARD_TINY_TEMPLATE")
    if given:
        return Path(given)
    root = tmp_path_factory.mktemp("template") / "rootfs"
    tiny.build(root)
    return root


@pytest.fixture(scope="session", params=kinds())
def kind(request: pytest.FixtureRequest) -> str:
    lacking = _lacking(request.param)
    if lacking:
        pytest.skip(lacking)
    return str(request.param)


@pytest.fixture(scope="session")
def data_dir(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all tests of a driver, as an engine has it: what one test leaves behind is the next one's trouble, so none may."""
    path = tmp_path_factory.mktemp(kind)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest_asyncio.fixture
async def yard(kind: str, data_dir: Path, template: Path) -> AsyncIterator[Yard]:
    """An open driver without sandboxes."""
    place = Yard(kind, data_dir, (str(template),))
    await place.open()
    yield place
    await place.clear()
