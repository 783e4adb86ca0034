"""Convert a repository as typed by the user to what the server expects."""

from __future__ import annotations

from pathlib import Path


def located(repository: str) -> str:
    """Return a local directory as an absolute path, because the server has another working directory. Anything else is unchanged."""
    if "://" in repository or not repository:
        return repository
    path = Path(repository).expanduser()
    return str(path.resolve()) if path.is_dir() else repository
