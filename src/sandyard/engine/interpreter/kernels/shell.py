"""The Bash kernel: bash_kernel's, with variables that come with a request."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from bash_kernel.kernel import BashKernel

from sandyard.engine.interpreter.kernels.environment import KEY

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ShellKernel(BashKernel):  # type: ignore[misc]
    _execute_sleep = 0.0

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        variables = (parent.get("metadata") or {}).get(KEY) or {}
        persistent, temporary, restored = (
            _filter_names(variables.get(name)) for name in ("env", "env_once", "env_back")
        )
        self._run_quietly(_make_exports({**persistent, **restored}))
        self._run_quietly("\n".join(map(_make_save_command, temporary)))
        self._run_quietly(_make_exports(temporary))
        try:
            await super().execute_request(stream, ident, parent)
        finally:
            self._run_quietly("\n".join(map(_make_restore_command, temporary)))

    def _run_quietly(self, commands: str) -> None:
        if commands:
            self.bashwrapper.run_command(commands, timeout=10)


def _filter_names(variables: Mapping[str, str] | None) -> dict[str, str]:
    """Return the variables whose names are valid in a shell."""
    return {name: value for name, value in (variables or {}).items() if _NAME.fullmatch(name)}


def _make_exports(variables: Mapping[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def _make_save_command(name: str) -> str:
    return f'[ -z "${{{name}+x}}" ] || __before_{name}=${{{name}}}'


def _make_restore_command(name: str) -> str:
    saved = f"__before_{name}"
    return f'if [ -n "${{{saved}+x}}" ]; then export {name}="${{{saved}}}"; unset {saved}; else unset {name}; fi'
