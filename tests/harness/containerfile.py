"""Parse the Containerfile in deploy/, as far as needed to run its steps on a bare machine: tests have no registry to build it from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tests.harness.processes import ROOT

PATH = ROOT / "deploy" / "container" / "Containerfile"
COMPOSE = PATH.with_name("compose.yaml")


@dataclass(frozen=True)
class Containerfile:
    base: str
    steps: tuple[tuple[str, str], ...]
    """The instructions in order, with their arguments as one line."""

    def list_arguments(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.steps if name == instruction]

    @property
    def packages(self) -> set[str]:
        """The packages that it installs with apt."""
        (words,) = re.findall(r"apt-get install ([^&]+)", " ".join(self.list_arguments("RUN")))
        return {word for word in words.split() if not word.startswith("-")}

    @property
    def command(self) -> list[str]:
        (entrypoint,), (command,) = self.list_arguments("ENTRYPOINT"), self.list_arguments("CMD")
        return [*json.loads(entrypoint), *json.loads(command)]


def read_containerfile(path: Path = PATH) -> Containerfile:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    steps = [(name, arguments) for name, _, arguments in (line.partition(" ") for line in joined.splitlines())]
    ((_, base),) = (step for step in steps if step[0] == "FROM")
    return Containerfile(base, tuple(steps))
