"""One engine, platform and Chromium for all tests of a worker, a browser context for each file, a page and a sign-in for each test. A file
that kills the platform, or needs it as it is after the first start, has one of its own (`own_platform`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.acceptance.conftest import started
from tests.acceptance.platform import Platform, running
from tests.forge import GitHub, forge
from tests.protocol.engine import Engine
from tests.web.browser import browsing, chromium, fresh_page, signed_in
from tests.web.yard import Yard

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
    """No longer than these tests: while Playwright is there, no event loop of another test can run."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def yard(platform: Platform) -> Yard:
    """What is there before a person opens the page."""
    return Yard(platform)


@pytest.fixture(scope="module")
def context(browser: Browser, platform: Platform) -> Iterator[BrowserContext]:
    with browsing(browser, platform.url) as context:
        yield context


@pytest.fixture
def page(context: BrowserContext, platform: Platform) -> Iterator[Page]:
    with fresh_page(context, platform.url, platform.token) as page:
        yield page


@pytest.fixture
def phone(browser: Browser, platform: Platform) -> Iterator[Page]:
    with signed_in(browser, platform.url, platform.token, phone=True) as page:
        yield page
