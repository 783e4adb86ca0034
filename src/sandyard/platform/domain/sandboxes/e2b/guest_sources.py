"""Sources of the programs in `guest/`, as they are sent to sandboxes."""

from __future__ import annotations

import ast
from itertools import dropwhile
from pathlib import Path

_FOLDER = Path(__file__).with_name("guest")
RELAY_MODULES = ("signals", "journal", "output", "leftovers", "command", "main")
"""The modules in the order in which they are joined. While a module is loaded, it uses only names of earlier ones."""


def read_script(name: str) -> str:
    """Return the text of a script without the comment at its beginning."""
    lines = (_FOLDER / name).read_text().splitlines(keepends=True)
    return "".join(dropwhile(lambda line: line.startswith("#"), lines))


def join_relay_modules() -> bytes:
    """Return all modules of the relay as a single file, which is loaded faster. See `guest/relay/__init__.py`."""
    return "\n\n\n".join(_read_module(_FOLDER / "relay" / f"{name}.py") for name in RELAY_MODULES).encode() + b"\n"


def _read_module(path: Path) -> str:
    """Return the text of a module without its docstring and its imports from the other modules."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or isinstance(node, ast.ImportFrom):
            assert node.end_lineno is not None
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "".join(lines).strip()
