from __future__ import annotations

import importlib


def test_benchmarks_can_be_imported() -> None:
    """They use the tests' helpers, and nothing else in the suite runs them."""
    importlib.import_module("bench.__main__")
