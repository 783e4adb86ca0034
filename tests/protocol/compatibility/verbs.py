"""Find every public verb of the SDKs by inspecting the packages."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

SDKS = ("e2b", "e2b_code_interpreter")
PACKAGES = Path(__file__).parents[1] / "js" / "node_modules"
DECLARATIONS = {"e2b": "e2b", "@e2b/code-interpreter": "e2b_code_interpreter"}

SYNC, ASYNC, JS, CLI = "Python", "Python, async", "JavaScript", "CLI"
PLUMBING = (
    "e2b.api",
    "e2b.envd",
    "e2b.volume.client",
    "e2b.connection_config",
    "e2b.volume.connection_config",
    "e2b.retry",
)
"""Modules with transports and generated clients. Their classes are not part of the documented API."""
SILENT = {"ConnectionConfig", "ApiClient", "Chart", "DefaultBuildLogger", "DockerfileParserInterface", "Execution"}
SILENT |= {"LogEntry", "ReadyCmd", "Result", "VolumeConnectionConfig"}
"""Classes that hold data and make no requests."""
INTERPRETER = "Sandbox (code interpreter)"
SAME = {"TemplateBase": "Template", "TemplateBuilder": "Template", "TemplateFinal": "Template", "SandboxApi": "Sandbox"}
"""Classes that share a noun: their names differ by language and by how complete a template is."""


class Verb(NamedTuple):
    """A public method or command. `noun` and `name` use Python's spelling in every language."""

    language: str
    noun: str
    name: str

    @property
    def row(self) -> str:
        return f"{self.noun}.{self.name}"


def snake(name: str) -> str:
    """Convert camel case to snake case: `runCode` to `run_code`, `fromAWSRegistry` to `from_aws_registry`."""
    words = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z\d])([A-Z])", r"\1_\2", words).lower()


def noun(name: str, package: str) -> str:
    """Return the noun of a class: `AsyncSandbox` in one language and `Sandbox` in another have the same noun."""
    base_name = name.lstrip("_").removeprefix("Async")
    if package == "e2b_code_interpreter" and base_name == "Sandbox":
        return INTERPRETER
    return SAME.get(base_name, base_name)


def classes() -> dict[type, tuple[str, ...]]:
    """Return the classes of the Python SDKs that have verbs, with their columns. Classes without an async variant are in both columns."""
    for package in SDKS:
        importlib.import_module(package)
    found: dict[type, tuple[str, ...]] = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in SDKS or name.startswith(PLUMBING):
            continue
        for candidate in vars(module).values():
            if inspect.isclass(candidate) and candidate.__module__ == name and _has_verbs(candidate):
                found[candidate] = _columns(candidate)
    return found


def _has_verbs(candidate: type) -> bool:
    if candidate.__name__.startswith("_") or candidate.__name__ in SILENT or _is_base(candidate):
        return False
    if issubclass(candidate, (BaseException, enum.Enum, dict)) or dataclasses.is_dataclass(candidate):
        return False
    return any(True for _ in methods(candidate))


def _is_base(candidate: type) -> bool:
    """Return whether it is a base class, whose methods are found in its subclasses."""
    return candidate.__name__.endswith(("Base", "Api"))


def _columns(candidate: type) -> tuple[str, ...]:
    if "_async" in candidate.__module__ or candidate.__name__.startswith("Async"):
        return (ASYNC,)
    twin = hasattr(sys.modules[candidate.__module__], f"Async{candidate.__name__}")
    return (SYNC,) if twin or "_sync" in candidate.__module__ else (SYNC, ASYNC)


def methods(owner: type) -> Iterator[tuple[type, str]]:
    """Yield the public methods of a class and the class that defines each, without methods inherited from another listed class."""
    others = [base for base in owner.__mro__[1:] if _of_sdk(base) and not _is_base(base)]
    for name in dir(owner):
        if name.startswith("_") or any(hasattr(base, name) for base in others):
            continue
        definer = next(base for base in owner.__mro__ if name in vars(base))
        method = getattr(owner, name)
        if _of_sdk(definer) and callable(method) and not inspect.isclass(method):
            yield definer, name


def _of_sdk(candidate: type) -> bool:
    return candidate.__module__.partition(".")[0] in SDKS


def python() -> list[Verb]:
    return sorted(
        {
            Verb(column, noun(owner.__name__, owner.__module__.partition(".")[0]), name)
            for owner, columns in classes().items()
            for column in columns
            for _, name in methods(owner)
        }
    )


_CLASS = re.compile(r"^(?:export )?(?:declare )?(?:abstract )?class (\w+)")
_MEMBER = re.compile(r"^(?:static |async )*(\w+)(?:<[^>]*>)?\(")


def javascript() -> list[Verb]:
    """Return the verbs from the type declarations in the packages, because only they tell what is private."""
    found: set[Verb] = set()
    for folder, package in DECLARATIONS.items():
        text = (PACKAGES / folder / "dist" / "index.d.ts").read_text()
        for name, member in list_members(text.splitlines()):
            plumbing = name in SILENT or name.endswith("Error")
            if not plumbing and member not in ("constructor", "toString"):
                found.add(Verb(JS, noun(name, package), snake(member)))
    return sorted(found)


def list_members(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield classes and their public methods. Declarations are generated, so members are indented by one level."""
    owner: str | None = None
    indent = ""
    for line in lines:
        if class_start := _CLASS.match(line):
            owner, indent = class_start[1], ""
        elif line.startswith("}"):
            owner = None
        elif owner:
            text = line.lstrip()
            indent = indent or line[: len(line) - len(text)]
            if line.startswith(indent) and not line[len(indent) :].startswith((" ", "*", "/")):
                member = _MEMBER.match(text)
                if member:
                    yield owner, member[1]


_COMMAND = re.compile(r"^  (\w+)(?:\|\w+)?(?: |$)", re.MULTILINE)


def commands(run: Callable[..., str], *group: str) -> list[Verb]:
    """Return the commands of the CLI from its help. `run` runs the CLI and returns its output."""
    _, separator, text = run(*group, "--help").partition("\nCommands:\n")
    if not separator:
        return [Verb(CLI, "e2b", " ".join(group))]
    names = [name for name in _COMMAND.findall(text) if name != "help"]
    return [verb for name in names for verb in commands(run, *group, name)]


def versions() -> dict[str, str]:
    """Return the version of each package whose verbs are listed, by package name."""
    found = {name: metadata.version(name) for name in ("e2b", "e2b-code-interpreter")}
    for name in ("e2b", "@e2b/code-interpreter", "@e2b/cli"):
        package_json = PACKAGES / name / "package.json"
        if package_json.exists():
            found[f"{name} (npm)"] = str(json.loads(package_json.read_text())["version"])
    return found
