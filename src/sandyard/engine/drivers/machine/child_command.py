"""Commands that run parts of this project in a separate process which starts quickly."""

from __future__ import annotations

from pathlib import Path

import sandyard
from sandyard.kit.python import make_bare_python_command

_PACKAGES_WITHOUT_INIT = ("sandyard.engine.drivers", "sandyard.engine.drivers.machine.net")


def make_bare_command(statement: str) -> list[str]:
    """Return a command that runs a Python statement with only the standard library and this project's modules. The
    `__init__` of some packages is not run, because its dependencies are missing there."""
    source = Path(sandyard.__file__).parent.parent
    lines = ["import sys, types", f"sys.path.insert(0, {str(source)!r})"]
    for name in _PACKAGES_WITHOUT_INIT:
        lines.append(f"sys.modules[{name!r}] = types.ModuleType({name!r})")
        lines.append(f"sys.modules[{name!r}].__path__ = [{str(source.joinpath(*name.split('.')))!r}]")
    return make_bare_python_command("-c", "\n".join([*lines, statement]))
