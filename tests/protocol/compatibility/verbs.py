"""Every public verb of the SDKs, found by looking at the packages themselves."""

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
"""Modules of transports and generated clients: their classes are no part of what the documentation shows a user."""
SILENT = {"ConnectionConfig", "ApiClient", "Chart", "DefaultBuildLogger", "DockerfileParserInterface", "Execution"}
SILENT |= {"LogEntry", "ReadyCmd", "Result", "VolumeConnectionConfig"}
"""Classes that hold something and never ask a server."""
INTERPRETER = "Sandbox (code interpreter)"
SAME = {"TemplateBase": "Template", "TemplateBuilder": "Template", "TemplateFinal": "Template", "SandboxApi": "Sandbox"}
"""One noun in several classes, depending on the language and on how far a template has been described."""


class Verb(NamedTuple):
    """`noun` and `name` are the same in every language, in Python's spelling."""

    language: str
    noun: str
    name: str

    @property
    def row(self) -> str:
        return f"{self.noun}.{self.name}"


def snake(name: str) -> str:
    """`runCode` is `run_code`, `fromAWSRegistry` is `from_aws_registry`."""
    words = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z\d])([A-Z])", r"\1_\2", words).lower()


def noun(name: str, package: str) -> str:
    """The noun of a class, whose name in one language is `AsyncSandbox` and in another `Sandbox`."""
    plain = name.lstrip("_").removeprefix("Async")
    if package == "e2b_code_interpreter" and plain == "Sandbox":
        return INTERPRETER
    return SAME.get(plain, plain)


def classes() -> dict[type, tuple[str, ...]]:
    """The classes of the Python SDKs that have verbs, and their columns: those without an async twin serve both."""
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
    """What it has is found in the classes made of it."""
    return candidate.__name__.endswith(("Base", "Api"))


def _columns(candidate: type) -> tuple[str, ...]:
    if "_async" in candidate.__module__ or candidate.__name__.startswith("Async"):
        return (ASYNC,)
    twin = hasattr(sys.modules[candidate.__module__], f"Async{candidate.__name__}")
    return (SYNC,) if twin or "_sync" in candidate.__module__ else (SYNC, ASYNC)


def methods(owner: type) -> Iterator[tuple[type, str]]:
    """The public methods of a class and who defines them, without those of another listed class that it is made of."""
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
    """From the declarations that come with the packages: only they know what is private."""
    found: set[Verb] = set()
    for folder, package in DECLARATIONS.items():
        text = (PACKAGES / folder / "dist" / "index.d.ts").read_text()
        for name, member in _members(text.splitlines()):
            plumbing = name in SILENT or name.endswith("Error")
            if not plumbing and member not in ("constructor", "toString"):
                found.add(Verb(JS, noun(name, package), snake(member)))
    return sorted(found)


def _members(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names of classes and their public methods. Declarations are printed by a machine: members stand one level in."""
    owner: str | None = None
    indent = ""
    for line in lines:
        if begun := _CLASS.match(line):
            owner, indent = begun[1], ""
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
    """The commands of the CLI, from its own help: `run` hands back what it says."""
    _, listed, text = run(*group, "--help").partition("\nCommands:\n")
    if not listed:
        return [Verb(CLI, "e2b", " ".join(group))]
    names = [name for name in _COMMAND.findall(text) if name != "help"]
    return [verb for name in names for verb in commands(run, *group, name)]


def versions() -> dict[str, str]:
    """Of each package whose verbs are listed, by its name."""
    found = {name: metadata.version(name) for name in ("e2b", "e2b-code-interpreter")}
    for name in ("e2b", "@e2b/code-interpreter", "@e2b/cli"):
        described = PACKAGES / name / "package.json"
        if described.exists():
            found[f"{name} (npm)"] = str(json.loads(described.read_text())["version"])
    return found
