"""What every test may ask for."""

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

from tests.databases import database, database_url, empty_database_url, postgres_schema, postgres_schema_url
from tests.postgres import postgres, postgres_url

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
    # a shell starts jobs in the background with Ctrl-C ignored, and programs that tests start would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _kept(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """`create`, which reads this machine's authorities only once."""

    @functools.cache
    def authorities(*_: str | None) -> ssl.SSLContext:
        return create()

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None:
            return authorities(*(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")))
        return create(verify, cert, trust_env)

    return context


# tests make thousands of clients of loopback servers, and to read a machine's authorities for each takes 70 ms
httpx.create_ssl_context = httpx._transports.default.create_ssl_context = _kept(httpx.create_ssl_context)
httpx2._transports.default.create_ssl_context = _kept(httpx2.create_ssl_context)

DATABASES = ("database_url", "empty_database_url")
"""Fixtures whose parameter is the kind of a database."""
LONGEST_FIRST = (
    *("tests/acceptance/", "tests/web/", "tests/integration/cli/", "tests/protocol/", "tests/conformance/"),
    "tests/integration/",
)
"""Folders of tests by the time that a file of theirs takes, so that no worker is left alone with a long one at the end."""
TOGETHER = "tests/integration/cli/"
"""The tests of this folder share one `sandyard up`, which takes longer to start than most of them run. So one worker gets them all,"""
APART = "tests/integration/cli/up/"
"""but not these, which start their own."""
LOG_LINES = 60


class Scheduler(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """Gives the tests of a file to one worker, and those of `TOGETHER` too."""

    def _split_scope(self, nodeid: str) -> str:
        shared = nodeid.startswith(TOGETHER) and not nodeid.startswith(APART)
        return TOGETHER if shared else super()._split_scope(nodeid)


class Failures:
    """Tells of a failure when it happens: a run that is cut off never comes to its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\nfailed: {report.nodeid}, in {report.when}, after {report.duration:.1f} s")
            reporter.write_line(report.longreprtext[-2000:])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every test, on every database, as `make test-all` does")
    parser.addoption("--sqlite", action="store_true", help="nothing on PostgreSQL, as `make check` does")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler | None:
    return Scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "slow: runs only with --all (make test-all), or when the test is named by its id",
        "both_databases: depends on the database, so that it runs on PostgreSQL too without --all",
    ):
        config.addinivalue_line("markers", line)
    config.pluginmanager.register(Failures(config))
    gc.disable()  # thousands of tests are loaded, and all of them stay


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the last lines that its engine and its platform have logged."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            for server in (value, getattr(value, "engine", None), getattr(value, "platform", None)):
                if isinstance(log := getattr(server, "log", None), Path) and log.is_file():
                    last = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
                    report.sections.append((f"log of {name}: {log.name}", "\n".join(last)))
    return report


@pytest.hookimpl(trylast=True)  # after fixtures have brought together the tests that share them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not _is_wanted(item)]
    if left_out:
        items[:] = [item for item in items if _is_wanted(item)]
        config.hook.pytest_deselected(items=left_out)
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
