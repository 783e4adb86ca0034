"""One engine, platform, Chromium and browser context for all tests of a worker, one page and sign-in per test. A file that kills the
platform, or needs it in its state after the first start, uses its own one (`own_platform`), and then also its own browser context."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.forge import GitHub, forge
from tests.harness.engine import Engine, started
from tests.harness.platform import Platform, running
from tests.web.api import Api
from tests.web.browser import chromium, fresh_page, open_context, signed_in_page

SETTINGS = {
    "CREATES_PER_MINUTE": "100000",
    "EXECUTES_PER_MINUTE": "100000",
    "LOGINS_PER_MINUTE": "100000",
    "FORGE_POLL_S": "2",
    "PARALLEL_ATTEMPTS": "6",
    "PARALLEL_ATTEMPTS_PER_USER": "6",
}


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    with started(POOL_SIZE="2", DEFAULT_MEMORY_MB="256", DEFAULT_DISK_MB="512") as engine:
        yield engine


@pytest.fixture(scope="package")
def shared_platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, **SETTINGS) as platform:
        yield platform


@pytest.fixture(scope="module")
def own_platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, **SETTINGS) as platform:
        yield platform


@pytest.fixture(scope="module")
def platform(shared_platform: Platform) -> Platform:
    return shared_platform


@pytest.fixture(scope="package")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Package scope, and not longer: no other test can run an event loop while Playwright is active."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def api(platform: Platform) -> Api:
    """The API of the platform, to prepare data and to check results."""
    return Api(platform)


@pytest.fixture(scope="package")
def shared_context(browser: Browser, shared_platform: Platform) -> Iterator[BrowserContext]:
    with open_context(browser, shared_platform.url) as context:
        yield context


@pytest.fixture(scope="module")
def own_context(browser: Browser, own_platform: Platform) -> Iterator[BrowserContext]:
    with open_context(browser, own_platform.url) as context:
        yield context


@pytest.fixture(scope="module")
def context(request: pytest.FixtureRequest) -> BrowserContext:
    own = "own_platform" in request.fixturenames
    context: BrowserContext = request.getfixturevalue("own_context" if own else "shared_context")
    return context


@pytest.fixture
def page(context: BrowserContext, platform: Platform) -> Iterator[Page]:
    with fresh_page(context, platform.url, platform.token) as page:
        yield page


@pytest.fixture
def phone(browser: Browser, platform: Platform) -> Iterator[Page]:
    with signed_in_page(browser, platform.url, platform.token, phone=True) as page:
        yield page
