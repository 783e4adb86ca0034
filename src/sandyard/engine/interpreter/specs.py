"""The installed kernels, as Jupyter defines them: `<folder>/kernels/<name>/kernel.json`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ALIASES = {"": "python", "js": "javascript", "ts": "typescript", "py": "python", "sh": "bash"}


ADDABLE = ("java", "r")
"""Languages that the engine can add to its template."""


class UnknownLanguageError(LookupError):
    """No kernel supports the language. `language` is set if the engine can add one."""

    def __init__(self, message: str, language: str | None = None) -> None:
        super().__init__(message)
        self.language = language


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel. `forked` is the kernel's name in the fork server, or None if `argv` starts it."""

    name: str
    language: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    interrupt_by_message: bool = False  # interrupt it with a message instead of a signal
    forked: str | None = None


def list_folders() -> list[Path]:
    """Return Jupyter's kernel folders, the most specific first."""
    configured = [Path(part) for part in os.environ.get("JUPYTER_PATH", "").split(":") if part]
    home = Path(os.environ.get("HOME", "/root"))
    fixed = [home / ".local/share/jupyter", Path("/home/user/.local/share/jupyter")]
    return [*configured, *fixed, Path("/usr/local/share/jupyter"), Path("/usr/share/jupyter")]


def list_installed(folders: list[Path] | None = None) -> list[Spec]:
    """Return the installed kernels. Reads them each time, because a user may have installed one. Unreadable ones are
    skipped."""
    specs: dict[str, Spec] = {}
    for folder in list_folders() if folders is None else folders:
        for spec in _read_folder(folder / "kernels"):
            specs.setdefault(spec.name, spec)
    return list(specs.values())


def find(language: str, specs: list[Spec]) -> Spec:
    """Find a kernel by its name, otherwise by its language. UnknownLanguageError lists the installed ones."""
    for spec in specs:
        if spec.name.lower() == language:
            return spec
    for spec in specs:
        if spec.language.lower() == language:
            return spec
    known = ", ".join(sorted({spec.language.lower() for spec in specs})) or "none"
    raise UnknownLanguageError(
        f"No kernel for '{language}' is installed in this sandbox. Installed: {known}. "
        "Any Jupyter kernel that is installed in the sandbox or its template can be used.",
        language if language in ADDABLE else None,
    )


def normalise(language: str | None) -> str:
    plain = (language or "").strip().lower()
    return ALIASES.get(plain, plain)


def _read_folder(folder: Path) -> Iterator[Spec]:
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                yield _parse_spec(path.name, json.loads((path / "kernel.json").read_text()), str(path))


def _parse_spec(name: str, raw: dict[str, object], folder: str) -> Spec:
    argv = raw["argv"]
    metadata, env = raw.get("metadata") or {}, raw.get("env") or {}
    if not isinstance(argv, list) or not argv or not isinstance(metadata, dict) or not isinstance(env, dict):
        raise ValueError("not a kernel")
    forked = metadata.get("forked")
    return Spec(
        name,
        str(raw.get("language") or name),
        tuple(str(part).replace("{resource_dir}", folder) for part in argv),
        {str(key): str(value) for key, value in env.items()},
        interrupt_by_message=raw.get("interrupt_mode") == "message",
        forked=str(forked) if forked else None,
    )
