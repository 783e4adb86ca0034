"""How people name a repository, and how the server is told."""

from __future__ import annotations

from pathlib import Path


def located(repository: str) -> str:
    """A directory of this machine as an absolute path, everything else as it is: the server does not know where we are."""
    if "://" in repository or not repository:
        return repository
    path = Path(repository).expanduser()
    return str(path.resolve()) if path.is_dir() else repository
