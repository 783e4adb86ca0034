"""Record which verbs each test calls, into the folder that SANDYARD_COMPATIBILITY names. Without the variable, record nothing.

A verb is recorded when a test calls it, not when the SDK calls it from another verb. Each process writes its own file, because tests may
run in several processes.
"""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Coroutine, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from .verbs import CLI, Verb, classes, methods, noun

VARIABLE = "SANDYARD_COMPATIBILITY"
HOOK = Path(__file__).parents[1] / "js" / "recorder.mjs"
_inside: ContextVar[bool] = ContextVar("inside", default=False)


def folder() -> Path | None:
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


def javascript_environment(test: str) -> dict[str, str]:
    """Return the variables that make a Node process record its verbs under `test`, the test that pytest runs."""
    if folder() is None:
        return {}
    return {"NODE_OPTIONS": f"--import={HOOK.as_uri()}", "SANDYARD_COMPATIBILITY_TEST": test}


_active: list[Recorder] = []


def configure(config: pytest.Config) -> None:
    """Enable recording if SANDYARD_COMPATIBILITY is set. This also selects the slow tests."""
    target = folder()
    if target is not None and not _active:
        config.option.all = True
        _active.append(Recorder(target))
        config.pluginmanager.register(_active[0], "compatibility")


def note_command(*words: str) -> None:
    """Record a CLI command, such as `sandbox list`."""
    for recorder in _active:
        recorder.called.add(Verb(CLI, "e2b", " ".join(words)))


class Recorder:
    """Pytest plugin that patches the SDKs' classes and, at the end of the run, writes the verbs that passing tests called."""

    def __init__(self, target: Path) -> None:
        self._into = target
        self.called: set[Verb] = set()
        self._passed: dict[str, list[Verb]] = {}
        self._failed: set[str] = set()
        target.mkdir(parents=True, exist_ok=True)
        for owner, columns in classes().items():
            for definer, name in methods(owner):
                patched = vars(definer)[name]
                if not isinstance(patched, _Recorded):
                    patched = _Recorded(patched, name, self.called)
                    setattr(definer, name, patched)
                package = owner.__module__.partition(".")[0]
                patched.owners[owner] = [Verb(column, noun(owner.__name__, package), name) for column in columns]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.called.clear()
        outcome = yield
        self._passed[item.nodeid] = sorted(self.called)
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        for test in self._failed:
            self._passed.pop(test, None)
        passed = {test: [list(verb) for verb in verbs] for test, verbs in self._passed.items() if verbs}
        (self._into / f"python-{uuid.uuid4().hex}.json").write_text(json.dumps(passed))


class _Recorded:
    """Wrap a method so that calls to it are recorded."""

    def __init__(self, original: Any, name: str, called: set[Verb]) -> None:
        self._original = original
        self._called = called
        self._name = name
        self.owners: dict[type, list[Verb]] = {}
        functools.update_wrapper(self, getattr(original, "__func__", original), updated=())

    def __get__(self, instance: object, owner: type) -> Any:
        bound = self._original.__get__(instance, owner)

        @functools.wraps(bound)
        def call(*arguments: Any, **options: Any) -> Any:
            if _inside.get():
                return bound(*arguments, **options)
            self._called.update(next((self.owners[base] for base in owner.__mro__ if base in self.owners), ()))
            token = _inside.set(True)
            try:
                result = bound(*arguments, **options)
            finally:
                _inside.reset(token)
            return _await_inside(result) if isinstance(result, Coroutine) else result

        return call


async def _await_inside(coroutine: Coroutine[Any, Any, Any]) -> Any:
    token = _inside.set(True)
    try:
        return await coroutine
    finally:
        _inside.reset(token)
