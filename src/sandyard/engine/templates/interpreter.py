"""The `code-interpreter` template: a layer on top of `base` with what Jupyter kernels need, and a thin layer above that
with our own program (`interpreter_program`), so that a new release needs no rebuild.

Python packages are installed through the machine's own pip or uv, like Node for `base`; for the rest see `layered`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.templates import base, layered, node
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion, require_space, use_default_umask
from sandyard.engine.templates.progress import Report
from sandyard.kit.errors import InvalidInputError, UnreachableError, UnsupportedError

NAME = "code-interpreter"
ALIASES = ("code-interpreter-v1", NAME)  # e2b_code_interpreter requests the first one
FORMAT = 1  # increase it when the build changes in a way that nothing else in the recipe reflects
EXTRAS = ("java", "r")
TITLES = {"java": "Java", "r": "R"}
MEMORY_MB = 1024  # pandas and matplotlib in one kernel use a third of it
LOCK = Path(__file__).with_name("interpreter.txt")
JAVA_LOCK = Path(__file__).with_name("interpreter-java.txt")
CUSTOMIZE = Path(__file__).with_name("interpreter-customize.sh")
SPACE = 3 << 30
LOG_TAIL = 15


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines the layer's contents."""

    base: TemplateVersion
    extras: tuple[str, ...] = ()

    @property
    def locks(self) -> tuple[Path, ...]:
        return (LOCK, JAVA_LOCK) if "java" in self.extras else (LOCK,)

    @property
    def digest(self) -> str:
        content = [*(lock.read_text() for lock in self.locks), CUSTOMIZE.read_text(), layered.SCRIPT.read_text()]
        parts = [str(FORMAT), self.base.version, *self.extras]
        return hashlib.sha256(json.dumps([parts, content]).encode()).hexdigest()[:16]


def parse_languages(names: str) -> tuple[str, ...]:
    """Parse a comma-separated list of extra languages. Raises InvalidInputError, which lists the valid ones."""
    wanted = tuple(sorted({name.strip().lower() for name in names.split(",") if name.strip()}))
    for name in wanted:
        if name not in EXTRAS:
            raise InvalidInputError(f"'{name}' cannot be added. Choose from {', '.join(EXTRAS)}.")
    return wanted


def newest(folder: TemplateFolder) -> TemplateVersion | None:
    return layered.newest(folder, NAME)


def extras_of(version: TemplateVersion | None) -> tuple[str, ...]:
    return parse_languages(version.details.get("with", "")) if version is not None else ()


def python_of(version: TemplateVersion) -> str:
    """Return the Python version, such as "3.11"."""
    return (version.rootfs / "usr/bin/python3").readlink().name.removeprefix("python")


def is_stale(folder: TemplateFolder) -> bool:
    """Return whether a build would produce something new, with the extras of the newest version."""
    bases, built = folder.list_versions(base.NAME), newest(folder)
    if not bases:
        return False
    return folder.find(NAME, Recipe(bases[0], extras_of(built)).digest) is None


def build(
    folder: TemplateFolder, report: Report, extras: Iterable[str] | None = None, *, force: bool = False
) -> TemplateVersion:
    """Build it on the newest `base`, or wait for another builder, and return the resulting version. Without `extras` it
    gets those of the newest version. Blocks for about two minutes. Raises BuildError with the end of the log."""
    below = layered.newest_base(folder, NAME)
    with folder.open_build_directory(NAME) as work, use_default_umask():
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
        return folder.publish(work, folder.make_version(NAME, wanted.digest, description, details))


def _fetch_packages(wanted: Recipe, stage: Path) -> None:
    command = node.installer()
    if command is None:
        raise UnsupportedError(
            f"Building template {NAME} requires pip or uv, and this Python has neither. Install one of them."
        )
    python = python_of(wanted.base)
    arguments = ["--target", str(stage), "--python-version", python, "--no-deps", "--require-hashes"]
    arguments += ["--only-binary", ":all:", *(word for lock in wanted.locks for word in ("-r", str(lock)))]
    done = node.run_installer(command, arguments)
    if done.returncode:
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-LOG_TAIL:])
        raise UnreachableError(f"Could not install the packages of template {NAME} for Python {python}: {tail}")
