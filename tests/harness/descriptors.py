"""The open files of the test process."""

from __future__ import annotations

from pathlib import Path


def list_open_files(folder: Path) -> list[str]:
    """Return the files and directories in a folder that this process has open. Counting all descriptors would not do:
    those of other tests are closed whenever garbage is collected."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [link for link in links if link.startswith(f"{folder}/")]
