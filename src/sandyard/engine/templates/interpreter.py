"""The `code-interpreter` template: a layer above `base` with what Jupyter kernels need, and a thin one above that with
our own program (`interpreter_program`), so that a new release of ours needs no build.

The layer belongs to the very version of `base` it was built on. Python's packages come through the machine's own pip or
uv, like Node for `base`; the rest is done in namespaces of its own, over an overlay whose upper directory is the layer.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.templates import base, node, trust
from sandyard.engine.templates.base import BuildError
from sandyard.engine.templates.folder import ROOTFS, Folder, Version, plain_modes, remove_tree, require_space
from sandyard.engine.templates.progress import Report
from sandyard.kit.errors import InvalidInputError, UnreachableError, UnsupportedError
from sandyard.kit.python import SAFE_FOLDER

NAME = "code-interpreter"
ALIASES = ("code-interpreter-v1", NAME)  # the first is what e2b_code_interpreter asks for
FORMAT = 1  # counts changes in how it is made that nothing else in the recipe shows
EXTRAS = ("java", "r")
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
        content = [*(lock.read_text() for lock in self.locks), CUSTOMIZE.read_text()]
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
    """The newest whose base is still there."""
    bases = {version.version for version in folder.versions(base.NAME)}
    return next((v for v in folder.versions(NAME) if v.details.get("base") in bases), None)


def base_of(folder: Folder, version: Version) -> Version | None:
    return next((v for v in folder.versions(base.NAME) if v.version == version.details.get("base")), None)


def python_of(version: Version) -> str:
    """Such as "3.11"."""
    return (version.rootfs / "usr/bin/python3").readlink().name.removeprefix("python")


def is_stale(folder: Folder) -> bool:
    """Whether a build would make something that is not there, with the extras the newest one has."""
    bases, built = folder.versions(base.NAME), newest(folder)
    if not bases:
        return False
    extras = chosen(built.details.get("with", "")) if built else ()
    return folder.find(NAME, Recipe(bases[0], extras).digest) is None


def build(folder: Folder, report: Report, extras: Iterable[str] | None = None, *, force: bool = False) -> Version:
    """Build it on the newest `base`, or wait for whoever builds it, and give what is there then. Without `extras` it gets
    those the newest one has. Blocks for two minutes or so. Raises BuildError with the end of the log."""
    bases = folder.versions(base.NAME)
    if not bases:
        raise BuildError(f"Template {NAME} stands on template base: build that first.")
    with folder.building(NAME) as work, plain_modes():
        if extras is None:
            found = newest(folder)
            extras = chosen(found.details.get("with", "")) if found else ()
        wanted = Recipe(bases[0], tuple(extras))
        if not force and (ready := folder.find(NAME, wanted.digest)):
            return ready
        require_space(folder.directory, SPACE, f"Building template {NAME}")
        report.update(0.0, "downloading packages")
        _fetch_packages(wanted, work / "stage")
        _put_together(wanted, work, report)
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


def _write_apt_settings(work: Path) -> None:
    """How apt of this machine reaches its archives, and whom it trusts; for the time of the build."""
    settings = dict(trust.apt_settings())
    bundles = [value for key, value in settings.items() if key.lower().endswith("::cainfo")]
    bundle = Path(next(iter(bundles), trust.BUNDLE))
    (work / "ca.crt").write_bytes(bundle.read_bytes() if bundle.is_file() else b"")
    kept = {key: value for key, value in settings.items() if not key.lower().endswith("::cainfo")}
    kept["Acquire::https::CaInfo"] = "/tmp/ca.crt"  # noqa: S108 (the template's, while it is made)
    lines = [f'{key} "{value}";\n' for key, value in kept.items()]
    (work / "apt.conf").write_text("".join(lines))


def _put_together(wanted: Recipe, work: Path, report: Report) -> None:
    _write_apt_settings(work)
    command = [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
        *("sh", str(CUSTOMIZE), str(wanted.base.rootfs), str(work), ",".join(wanted.extras)),
    ]
    tail: deque[str] = deque(maxlen=LOG_TAIL)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=SAFE_FOLDER
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                word, _, rest = line.strip().partition(" ")
                if word == "step":
                    fraction, _, doing = rest.partition(" ")
                    report.update(float(fraction), doing)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise BuildError(f"Template {NAME} could not be built. The last lines were:\n  " + "\n  ".join(tail))
    for leftover in ("stage", "overlay", "merged"):
        if (work / leftover).exists():
            remove_tree(work / leftover)
