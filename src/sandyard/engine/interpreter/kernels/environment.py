"""Variables that come with a request: some stay, some apply to that request only. Afterwards the sandbox's own
variables get the sandbox's value again, and others their previous value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

KEY = "sandyard"


def apply(parent: Mapping[str, Any]) -> Callable[[], None]:
    """Set the variables in a request's metadata. Call the returned function when the request is done."""
    wishes = (parent.get("metadata") or {}).get(KEY) or {}
    os.environ.update(wishes.get("env") or {})
    once = wishes.get("env_once") or {}
    back = wishes.get("env_back") or {}
    before = {name: back.get(name, os.environ.get(name)) for name in once}
    os.environ.update(once)

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return restore
