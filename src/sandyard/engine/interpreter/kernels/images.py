"""Displays Pillow images when a program shows or saves them, because there is no screen to open them on."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MODULE = "PIL.Image"


def install() -> None:
    """Install the hook, which runs when the user imports Pillow."""
    if MODULE in sys.modules:
        _extend_image(sys.modules[MODULE])
    elif not any(isinstance(finder, _ImageFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImageFinder())


class _ImageFinder(importlib.abc.MetaPathFinder):
    """Lets other finders find the module, and extends it once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_extend(module: ModuleType) -> None:
                load(module)
                _extend_image(module)

            spec.loader.exec_module = load_and_extend  # type: ignore[method-assign]
        return spec


def _extend_image(module: Any) -> None:
    from IPython.display import display  # noqa: PLC0415

    image = module.Image
    save = image.save

    def save_and_show(self: Any, fp: Any, format: str | None = None, **options: Any) -> None:
        save(self, fp, format, **options)
        if isinstance(fp, str | os.PathLike):
            display(self)

    image.save = save_and_show
    image.show = lambda self, title=None: display(self)
