"""The `code-interpreter` template: a layer on top of `base` with what Jupyter kernels need, and a thin layer above that
with Sandyard's own program (`interpreter_program`), so that a new release needs no rebuild.

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
REQUIRED_BYTES = 3 << 30
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
    languages = tuple(sorted({name.strip().lower() for name in names.split(",") if name.strip()}))
    for name in languages:
        if name not in EXTRAS:
            raise InvalidInputError(f"'{name}' cannot be added. Choose from {', '.join(EXTRAS)}.")
    return languages


def find_newest(folder: TemplateFolder) -> TemplateVersion | None:
    return layered.find_newest(folder, NAME)


def get_extras(version: TemplateVersion | None) -> tuple[str, ...]:
    """Return the extra languages of a version."""
    return parse_languages(version.details.get("with", "")) if version is not None else ()


def get_python_version(version: TemplateVersion) -> str:
    """Return the Python version, such as "3.11"."""
    return (version.rootfs / "usr/bin/python3").readlink().name.removeprefix("python")


def is_stale(folder: TemplateFolder) -> bool:
    """Return whether a build would produce something new, with the extras of the newest version."""
    bases, built = folder.list_versions(base.NAME), find_newest(folder)
    if not bases:
        return False
    return folder.find(NAME, Recipe(bases[0], get_extras(built)).digest) is None


def build(
    folder: TemplateFolder, report: Report, extras: Iterable[str] | None = None, *, force: bool = False
) -> TemplateVersion:
    """Build it on the newest `base`, or wait for another builder, and return the resulting version. Without `extras` it
    gets those of the newest version. Blocks for about two minutes. Raises BuildError with the end of the log."""
    base_version = layered.require_newest_base(folder, NAME)
    with folder.open_build_directory(NAME) as work, use_default_umask():
        if extras is None:
            extras = get_extras(find_newest(folder))
        recipe = Recipe(base_version, tuple(extras))
        if not force and (version := folder.find(NAME, recipe.digest)):
            return version
        require_space(folder.directory, REQUIRED_BYTES, f"Building template {NAME}")
        report.update(0.0, "downloading packages")
        _fetch_packages(recipe, work / "stage")
        layered.build_layer(NAME, CUSTOMIZE, recipe.base, work, report, ",".join(recipe.extras))
        report.update(0.99, "writing to disk")
        details = {
            "base": recipe.base.version,
            "with": ",".join(recipe.extras),
            "size": base.measure_size(work / ROOTFS),
        }
        languages = ", ".join(["Python, JavaScript, TypeScript, Deno, Bash", *(name.title() for name in recipe.extras)])
        description = f"Jupyter kernels ({languages}) on base {recipe.base.version}"
        return folder.publish(work, folder.make_version(NAME, recipe.digest, description, details))


def _fetch_packages(recipe: Recipe, stage: Path) -> None:
    command = node.find_installer()
    if command is None:
        raise UnsupportedError(
            f"Building template {NAME} requires pip or uv, and this Python has neither. Install one of them."
        )
    python = get_python_version(recipe.base)
    arguments = ["--target", str(stage), "--python-version", python, "--no-deps", "--require-hashes"]
    arguments += ["--only-binary", ":all:", *(word for lock in recipe.locks for word in ("-r", str(lock)))]
    result = node.run_installer(command, arguments)
    if result.returncode:
        tail = "\n".join((result.stderr.strip() or result.stdout.strip()).splitlines()[-LOG_TAIL:])
        raise UnreachableError(f"Could not install the packages of template {NAME} for Python {python}: {tail}")
