"""Packages that only a few tests use and that take a second to load: every worker loads every test, and few of them run those."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """A module that is loaded when something of it is first asked for.

    if TYPE_CHECKING:
        import heavy
    else:
        heavy = Later("heavy")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked by whoever looks for tests in a module
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
