"""Lazy imports of packages that take a second to load and that few tests use: every worker loads all test files."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """A module that is imported on first use.

    if TYPE_CHECKING:
        import heavy
    else:
        heavy = Later("heavy")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # requested by pytest when it collects tests
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
