"""Find the program runsc and build its command lines."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.machine.kernel import is_root
from sandyard.kit.errors import UnsupportedError

PRIVATE_RUNSC = Path("/var/lib/sandyard/gvisor/runsc")  # where `sandyard setup gvisor` installs it
MIN_VERSION = 20240729
INSTALL_HINT = "run `sandyard setup gvisor` to install it"


@dataclass(frozen=True, slots=True)
class Runsc:
    path: Path
    version: str

    @classmethod
    def find(cls, wanted: Path | None = None) -> Runsc:
        """Return the runsc of this machine; `wanted` is the only candidate if given. Blocks. Raises UnsupportedError,
        which says what is missing and what to do."""
        if not is_root():
            raise UnsupportedError("gVisor requires an engine that runs as root")
        candidates = [wanted] if wanted else [PRIVATE_RUNSC, *(Path(p) for p in [shutil.which("runsc")] if p)]
        reason = f"{wanted} does not exist" if wanted else f"gVisor (runsc) is not installed; {INSTALL_HINT}"
        for path in candidates:
            if not path.exists():
                continue
            output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            version = re.search(r"runsc version \S*?(\d{8})\S*", output)
            if version is None:
                reason = f"{path} does not start, or is not runsc; {INSTALL_HINT}"
            elif int(version[1]) < MIN_VERSION:
                reason = (
                    f"{path} is release {version[1]}, but release {MIN_VERSION} or later is required; {INSTALL_HINT}"
                )
            else:
                return cls(path, version[0].removeprefix("runsc version "))
        raise UnsupportedError(reason)

    def build_command(self, root: Path, *arguments: str, containers: bool = False) -> list[str]:
        """Return a command line for the sandbox whose state is in `root`. `containers`: it may run containers. All commands
        of a sandbox need the same options."""
        options = ["--net-raw"] if containers else []
        return [
            str(self.path), f"--root={root}", "--platform=systrap", "--overlay2=none", "--network=sandbox",
            "--net-disconnect-ok", *options, *arguments,
        ]  # fmt: skip
