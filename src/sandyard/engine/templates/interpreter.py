"""The `code-interpreter` template: a layer above `base` with what Jupyter kernels need, and a thin one above that with
our own program (`interpreter_program`), so that a new release of ours needs no build.

Python's packages come through the machine's own pip or uv, like Node for `base`; for the rest see `layered`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.templates import base, layered, node
from sandyard.engine.templates.folder import ROOTFS, Folder, Version, plain_modes, require_space
from sandyard.engine.templates.progress import Report
from sandyard.kit.errors import InvalidInputError, UnreachableError, UnsupportedError

NAME = "code-interpreter"
ALIASES = ("code-interpreter-v1", NAME)  # the first is what e2b_code_interpreter asks for
FORMAT = 1  # counts changes in how it is made that nothing else in the recipe shows
EXTRAS = ("java", "r")
TITLES = {"java": "Java", "r": "R"}
MEMORY_MB = 1024  # pandas and matplotlib in one kernel are a third of it
LOCK = Path(__file__).with_name("interpreter.txt")
JAVA_LOCK = Path(__file__).with_name("interpreter-java.txt")
CUSTOMIZE = Path(__file__).with_name("interpreter-customize.sh")
SPACE = 3 << 30
LOG_TAIL = 15


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides what the layer holds."""

    base: Version
    extras: tuple[str, ...] = ()

    @property
    def locks(self) -> tuple[Path, ...]:
        return (LOCK, JAVA_LOCK) if "java" in self.extras else (LOCK,)

    @property
    def digest(self) -> str:
        content = [*(lock.read_text() for lock in self.locks), CUSTOMIZE.read_text(), layered.SCRIPT.read_text()]
        parts = [str(FORMAT), self.base.version, *self.extras]
        return hashlib.sha256(json.dumps([parts, content]).encode()).hexdigest()[:16]


def chosen(names: str) -> tuple[str, ...]:
    """The extra languages in a list with commas. Raises InvalidInputError, saying which there are."""
    wanted = tuple(sorted({name.strip().lower() for name in names.split(",") if name.strip()}))
    for name in wanted:
        if name not in EXTRAS:
            raise InvalidInputError(f"'{name}' cannot be added: choose from {', '.join(EXTRAS)}.")
    return wanted


def newest(folder: Folder) -> Version | None:
    return layered.newest(folder, NAME)


def extras_of(version: Version | None) -> tuple[str, ...]:
    return chosen(version.details.get("with", "")) if version is not None else ()


def python_of(version: Version) -> str:
    """Such as "3.11"."""
    return (version.rootfs / "usr/bin/python3").readlink().name.removeprefix("python")


def is_stale(folder: Folder) -> bool:
    """Whether a build would make something that is not there, with the extras the newest one has."""
    bases, built = folder.versions(base.NAME), newest(folder)
    if not bases:
        return False
    return folder.find(NAME, Recipe(bases[0], extras_of(built)).digest) is None


def build(folder: Folder, report: Report, extras: Iterable[str] | None = None, *, force: bool = False) -> Version:
    """Build it on the newest `base`, or wait for whoever builds it, and give what is there then. Without `extras` it gets
    those the newest one has. Blocks for two minutes or so. Raises BuildError with the end of the log."""
    below = layered.newest_base(folder, NAME)
    with folder.building(NAME) as work, plain_modes():
        if extras is None:
            extras = extras_of(newest(folder))
        wanted = Recipe(below, tuple(extras))
        if not force and (ready := folder.find(NAME, wanted.digest)):
            return ready
        require_space(folder.directory, SPACE, f"Building template {NAME}")
        report.update(0.0, "downloading packages")
        _fetch_packages(wanted, work / "stage")
        layered.put_together(NAME, CUSTOMIZE, wanted.base, work, report, ",".join(wanted.extras))
        report.update(0.99, "writing to disk")
        details = {"base": wanted.base.version, "with": ",".join(wanted.extras), "size": base.size_of(work / ROOTFS)}
        languages = ", ".join(["Python, JavaScript, TypeScript, Deno, Bash", *(name.title() for name in wanted.extras)])
        description = f"Jupyter kernels ({languages}) on base {wanted.base.version}"
        return folder.publish(work, folder.new_version(NAME, wanted.digest, description, details))


def _fetch_packages(wanted: Recipe, stage: Path) -> None:
    command = node.installer()
    if command is None:
        raise UnsupportedError(f"Template {NAME} is made with pip or uv, and this Python has neither.")
    python = python_of(wanted.base)
    arguments = ["--target", str(stage), "--python-version", python, "--no-deps", "--require-hashes"]
    arguments += ["--only-binary", ":all:", *(word for lock in wanted.locks for word in ("-r", str(lock)))]
    done = node.run_installer(command, arguments)
    if done.returncode:
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-LOG_TAIL:])
        raise UnreachableError(f"The packages of template {NAME} could not be installed for Python {python}: {tail}")
