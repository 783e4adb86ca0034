"""A forge to test against: a real git server and a GitHub API on loopback, with faults that tests can request.

    from tests.forge import forge

    with forge() as github:
        site = github.repository("acme/website", files={"README.md": "hi\\n"})
        token = github.tokens.make("sandyard-bot")

`facade.py` documents its use; `gitserver.py` alone is a git server without an API, which starts at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.forge.facade import GitHub
from tests.forge.gitserver import GitServer

__all__ = ["GitHub", "GitServer", "forge"]


@contextlib.contextmanager
def forge() -> Iterator[GitHub]:
    """Start a separate forge, which is removed afterwards."""
    with GitHub() as github:
        yield github
