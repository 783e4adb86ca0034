"""The dependencies in pyproject.toml are those that the source imports."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/sandyard"
NOT_INSTALLED_HERE = (
    SOURCE / "engine/interpreter/kernels",  # runs in the code interpreter's template
    SOURCE / "platform/domain/projects/sample-repository",
)
IN_ANOTHER_ENVIRONMENT = {
    "ray": ["ray"]
}  # modules and their distributions: requirements/ray.txt is installed in .venv-ray
NOT_IMPORTED_BY_NAME = {
    "structlog",  # kit/logging.py imports it on first use
    "tzdata",  # the files that zoneinfo reads
}


def list_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """List all statements, without their expressions: `ast.walk` takes five times as long."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):  # the body of a lambda is an expression
                todo.extend(inner)


def imported_modules() -> set[str]:
    found = set[str]()
    for path in SOURCE.rglob("*.py"):
        if any(path.is_relative_to(folder) for folder in NOT_INSTALLED_HERE):
            continue
        for node in list_statements(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found.update(name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"sandyard", "_signal"}


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared_distributions() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for lines in extras for line in lines)]
    return {normalize(re.split(r"[\[<>=!~; ]", line)[0]) for line in lines}


def test_every_import_is_declared_and_every_dependency_imported() -> None:
    distributions = {**importlib.metadata.packages_distributions(), **IN_ANOTHER_ENVIRONMENT}
    declared = declared_distributions()
    imported = set[str]()
    for module in imported_modules():
        names = {normalize(name) for name in distributions[module]}
        imported |= names & declared or names  # several distributions share a namespace package
    assert imported | NOT_IMPORTED_BY_NAME == declared
