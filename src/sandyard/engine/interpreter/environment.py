"""Environment variables: the sandbox's own, which its agent keeps in a file, and how a kernel is told about new ones."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

FILE = Path("/dev/shm/.sandbox-envs.json")  # noqa: S108 - written by the agent each time a client gets the sandbox
INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TERM")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Sandbox:
    """The sandbox's current variables; the file is read again when it has changed."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._stamp: tuple[int, int, int] | None = None
        self._variables: dict[str, str] = {}

    def read_variables(self) -> dict[str, str]:
        try:
            status = self._file.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                raw = json.loads(self._file.read_text())
                self._variables = {str(name): str(value) for name, value in raw.items()}
                self._stamp = stamp
        except (OSError, ValueError, AttributeError):
            pass  # a sandbox without variables has no file; a file being written is read next time
        return self._variables


def make_kernel_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a new kernel: little of this server's, and all of the sandbox's."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {"HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash", **inherited, **variables}


def make_set_code(language: str, variables: Mapping[str, str]) -> str:
    """Return code that sets variables in a foreign kernel; empty for an unknown language."""
    if (syntax := _SYNTAX.get(language.lower())) is None:
        return ""
    return "\n".join(syntax[0](name, value) for name, value in variables.items() if _NAME.fullmatch(name))


def make_unset_code(language: str, names: Iterable[str], kept: Mapping[str, str]) -> str:
    """Return code that reverts variables that were set for one execution: to the sandbox's own value, otherwise unset."""
    if (syntax := _SYNTAX.get(language.lower())) is None:
        return ""
    valid = filter(_NAME.fullmatch, names)
    return "\n".join(syntax[0](name, kept[name]) if name in kept else syntax[1](name) for name in valid)


def _quote_single(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


# code that sets a variable, and code that unsets it
_Syntax = tuple[Callable[[str, str], str], Callable[[str], str]]
_NODE: _Syntax = (
    lambda name, value: f"process.env.{name} = {json.dumps(value)}",
    lambda name: f"delete process.env.{name}",
)
_SYNTAX: dict[str, _Syntax] = {
    "python": (
        lambda name, value: f"import os; os.environ[{name!r}] = {value!r}",
        lambda name: f"import os; os.environ.pop({name!r}, None)",
    ),
    "r": (lambda name, value: f"Sys.setenv({name} = {json.dumps(value)})", lambda name: f'Sys.unsetenv("{name}")'),
    "java": (
        lambda name, value: f'System.setProperty("{name}", {json.dumps(value)});',
        lambda name: f'System.clearProperty("{name}");',
    ),
    "bash": (lambda name, value: f"export {name}={shlex.quote(value)}", lambda name: f"unset {name}"),
    "javascript": _NODE,
    "typescript": _NODE,  # Deno's kernel, which has Node's `process` too
    "ruby": (lambda name, value: f"ENV['{name}'] = {_quote_single(value)}", lambda name: f"ENV.delete('{name}')"),
}
