"""Which files of a data directory a backup contains, and which of those in a backup are restored.

Everything else is created again. Some of it must not come from a file that somebody may have changed: the configuration and the hooks of a
repository, Python's bytecode, and what programs read from a home directory can name programs to run and files to read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

DUMP = "database.dump"
"""The dump of a PostgreSQL database, in the data directory of a backup."""
PLATFORM_DATABASES = ("workflows.db", "platform.db")
"""In the order in which they are read: a workflow records a step after the step's effects are in the platform's database."""
ENGINE_ENTRIES = ("secrets.key", "ca", "tls")
"""The parts of the engine's data directory that are backed up, besides its database."""
REPOSITORY_FOLDERS = ("git", "samples")
"""The directories in the platform's part that contain repositories."""
REPOSITORY_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
"""What `git init --bare` writes. Each restored repository gets it."""
_OBJECT_FOLDER = re.compile(r"[0-9a-f]{2}")


def is_known(path: PurePosixPath) -> bool:
    """Return whether a backup of any version may contain this file or directory."""
    match path.parts:
        case ("engine", name, *_):
            return name == "engine.db" or name in ENGINE_ENTRIES
        case ("engine" | "engine.key",) | ("platform", *_):
            return True
    return path.parts == (DUMP,)


def is_kept(path: PurePosixPath) -> bool:
    """Return whether this file or directory is backed up and restored."""
    match path.parts:
        case ("platform", name):
            return name in {*PLATFORM_DATABASES, *REPOSITORY_FOLDERS, "secret.key", "output"}
        case ("platform", "output", *_) | ("platform", "git", "known_hosts"):
            return True
        case ("platform", folder, name, *parts):
            return folder in REPOSITORY_FOLDERS and name.endswith(".git") and _is_kept_in_repository(parts)
    return is_known(path)


def _is_kept_in_repository(parts: Sequence[str]) -> bool:
    """Return whether this is a ref or an object, or one of the platform's own files that are not temporary."""
    match parts:
        case [] | ["HEAD" | "packed-refs" | "objects" | "sandyard"] | ["refs", *_]:
            return True
        case ["sandyard", "complete" | "default-branch"]:
            return True
        case ["objects", "pack" | "info"] | ["objects", "pack", _]:
            return True
        case ["objects", "info", "packs" | "commit-graph" | "commit-graphs"] | ["objects", "info", "commit-graphs", _]:
            return True
        case ["objects", folder] | ["objects", folder, _]:
            return _OBJECT_FOLDER.fullmatch(folder) is not None
    return False
