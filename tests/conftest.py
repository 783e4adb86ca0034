"""Fixtures and options for all tests."""

import functools
import gc
import os
import signal
import ssl
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import httpx._transports.default
import httpx2
import httpx2._transports.default
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.harness.databases import database, database_url, empty_database_url, postgres_schema, postgres_schema_url
from tests.harness.postgres import postgres, postgres_url

__all__ = [
    "database",
    "database_url",
    "empty_database_url",
    "postgres",
    "postgres_schema",
    "postgres_schema_url",
    "postgres_url",
]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts background jobs with SIGINT ignored, and programs that tests start would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _cache_authorities(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """Wrap `create` so that it reads the certificate authorities of this machine only once."""

    @functools.cache
    def default_context(*_: str | None) -> ssl.SSLContext:
        return create()

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None:
            return default_context(*(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")))
        return create(verify, cert, trust_env)

    return context


# tests create thousands of clients for loopback servers, and reading the authorities takes 70 ms for each
httpx.create_ssl_context = httpx._transports.default.create_ssl_context = _cache_authorities(httpx.create_ssl_context)
httpx2._transports.default.create_ssl_context = _cache_authorities(httpx2.create_ssl_context)

DATABASES = ("database_url", "empty_database_url", "records")
"""Fixtures whose parameter is the kind of the database."""
LONGEST_FIRST = (
    *("tests/web/", "tests/acceptance/", "tests/integration/cli/", "tests/protocol/", "tests/conformance/"),
    "tests/integration/",
)
"""Test directories, sorted by the run time of what one worker runs of them, so that none is left with long work at the end."""
TOGETHER = "tests/integration/cli/"
"""The tests of this directory share one `sandyard up`, which takes longer to start than most of them run: one worker runs them all."""
APART = "tests/integration/cli/up/"
"""These tests start their own `sandyard up` and are not included."""
WEB, SECOND_HALF = "tests/web/", "tests/web/test_g"
"""The tests of this directory share an engine, a platform and a browser with the application loaded: two workers run them, each one half of
the files. Four would start everything four times."""
LOG_LINES = 60


class Scheduler(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """Gives all tests of a file to one worker, and also all tests of `TOGETHER`, and of each half of `WEB`."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(TOGETHER) and not nodeid.startswith(APART):
            return TOGETHER
        if nodeid.startswith(WEB):
            return SECOND_HALF if nodeid >= SECOND_HALF else WEB
        return super()._split_scope(nodeid)  # type: ignore[no-any-return]


class FailureReporter:
    """Reports a failure when it happens: a run that is interrupted never prints its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\nfailed: {report.nodeid}, in {report.when}, after {report.duration:.1f} s")
            reporter.write_line(report.longreprtext[-2000:])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every test, on every database, as `make test-all` does")
    parser.addoption(
        "--min-isolation",
        choices=["namespace", "gvisor"],
        default="namespace",
        help="the isolation level of the sandboxes of tests/protocol",
    )
    parser.addoption("--sqlite", action="store_true", help="nothing on PostgreSQL, as `make check` does")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler | None:
    return Scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "slow: runs only with --all (make test-all), or when the test is named by its id",
        "not_in_gvisor(reason): skipped with --min-isolation gvisor, because that kernel lacks what the test needs",
        "both_databases: depends on the database, so that it runs on PostgreSQL too without --all",
    ):
        config.addinivalue_line("markers", line)
    config.pluginmanager.register(FailureReporter(config))
    gc.disable()  # thousands of tests are loaded, and none is freed


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last log lines of the engine and the platform to the report of a failed test."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            for server in (value, getattr(value, "engine", None), getattr(value, "platform", None)):
                if isinstance(log := getattr(server, "log", None), Path) and log.is_file():
                    last = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
                    report.sections.append((f"log of {name}: {log.name}", "\n".join(last)))
    return report


@pytest.hookimpl(trylast=True)  # after pytest has grouped the tests by their shared fixtures
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted, deselected = [], []
    for item in items:
        (wanted if _is_wanted(item) else deselected).append(item)
    if deselected:
        items[:] = wanted
        config.hook.pytest_deselected(items=deselected)
    items.sort(key=_rank)


def _is_wanted(item: pytest.Item) -> bool:
    config, parameters = item.config, getattr(item, "callspec", None)
    postgresql = parameters is not None and any(parameters.params.get(name) == "postgresql" for name in DATABASES)
    if postgresql and config.getoption("sqlite"):
        return False
    if config.getoption("all") or any("::" in argument for argument in config.args):
        return True
    if postgresql and not item.get_closest_marker("both_databases"):
        return False
    return not item.get_closest_marker("slow")


def _rank(item: pytest.Item) -> int:
    ranks = (rank for rank, folder in enumerate(LONGEST_FIRST) if item.nodeid.startswith(folder))
    return next(ranks, len(LONGEST_FIRST))
