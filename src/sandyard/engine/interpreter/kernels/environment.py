"""Environment variables in a request to a kernel.

`env` is set permanently, `env_once` for this request only. Afterwards a variable of the sandbox gets the sandbox's value
(`env_back`), and every other one its previous value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

KEY = "sandyard"


def apply(parent: Mapping[str, Any]) -> Callable[[], None]:
    """Set the variables in a request's metadata. Call the returned function when the request is done."""
    variables = (parent.get("metadata") or {}).get(KEY) or {}
    os.environ.update(variables.get("env") or {})
    temporary = variables.get("env_once") or {}
    restored = variables.get("env_back") or {}
    before = {name: restored.get(name, os.environ.get(name)) for name in temporary}
    os.environ.update(temporary)

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return restore
