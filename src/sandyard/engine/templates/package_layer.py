"""Templates on top of `base` whose layer consists of packages of the machine's archives and a script's changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.templates import base, layered
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion, require_space, use_default_umask
from sandyard.engine.templates.progress import Report


@dataclass(frozen=True, slots=True)
class PackageLayer:
    """The recipe of such a template. The recipe, the version of `base` and the current state of the archives determine the contents.

    `packages` are lists of package names. `script` gets each list as one argument. Increase `format` when the build changes in a
    way that no other field shows. `describe` returns what a built layer contains, for people.
    """

    name: str
    script: Path
    packages: Sequence[Sequence[str]]
    required_bytes: int
    describe: Callable[[Path], str]
    format: int = 1

    def compute_digest(self, base_version: TemplateVersion) -> str:
        """Return the digest of the recipe and this version of `base`."""
        first, *others = self.packages
        parts = [str(self.format), base_version.version, *first]
        for names in others:
            parts += ["", *names]
        scripts = [self.script.read_text(), layered.SCRIPT.read_text()]
        return hashlib.sha256(json.dumps([parts, scripts]).encode()).hexdigest()[:16]

    def find_newest(self, folder: TemplateFolder) -> TemplateVersion | None:
        return layered.find_newest(folder, self.name)

    def is_stale(self, folder: TemplateFolder) -> bool:
        """Return whether it was built before and a build would produce a newer version."""
        bases = folder.list_versions(base.NAME)
        if not bases or self.find_newest(folder) is None:
            return False
        return folder.find(self.name, self.compute_digest(bases[0])) is None

    def build(self, folder: TemplateFolder, report: Report, *, force: bool = False) -> TemplateVersion:
        """Build it on the newest `base`, or wait for another builder, and return the resulting version. Blocks for a minute
        or more. Raises BuildError with the end of the log."""
        base_version = layered.require_newest_base(folder, self.name)
        digest = self.compute_digest(base_version)
        with folder.open_build_directory(self.name) as work, use_default_umask():
            if not force and (version := folder.find(self.name, digest)):
                return version
            require_space(folder.directory, self.required_bytes, f"Building template {self.name}")
            report.update(0.0, "reading package lists")
            arguments = (" ".join(names) for names in self.packages)
            layered.build_layer(self.name, self.script, base_version, work, report, *arguments)
            report.update(0.99, "writing to disk")
            details = {"base": base_version.version, "size": base.measure_size(work / ROOTFS)}
            description = f"{self.describe(work / ROOTFS)} on base {base_version.version}"
            return folder.publish(work, folder.make_version(self.name, digest, description, details))
