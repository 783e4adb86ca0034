"""Shared code of templates that are one layer on top of `base` (`code-interpreter`, `desktop`, `docker`): which version of `base`
a layer belongs to, and how a script builds a layer.

A layer belongs to exactly the version of `base` it was built on. It is built in separate namespaces, on an overlay
whose upper directory is the layer.
"""

from __future__ import annotations

from pathlib import Path

from sandyard.engine.templates import base, trust
from sandyard.engine.templates.base import BuildError
from sandyard.engine.templates.folder import TemplateFolder, TemplateVersion, remove_tree
from sandyard.engine.templates.progress import Report, StepProgress

SCRIPT = Path(__file__).with_name("layered.sh")  # sourced by the templates' scripts


def find_newest(folder: TemplateFolder, name: str) -> TemplateVersion | None:
    """Return the newest version whose base still exists."""
    bases = {version.version for version in folder.list_versions(base.NAME)}
    return next((version for version in folder.list_versions(name) if version.details.get("base") in bases), None)


def find_base(folder: TemplateFolder, version: TemplateVersion) -> TemplateVersion | None:
    """Return the version of `base` that this layer was built on, or None if it no longer exists."""
    label = version.details.get("base")
    return next((candidate for candidate in folder.list_versions(base.NAME) if candidate.version == label), None)


def require_newest_base(folder: TemplateFolder, name: str) -> TemplateVersion:
    """Return the version of `base` to build a new layer on. Raises BuildError if there is none."""
    bases = folder.list_versions(base.NAME)
    if not bases:
        raise BuildError(f"Template {name} requires template base. Build base first.")
    return bases[0]


def build_layer(
    name: str, script: Path, base_version: TemplateVersion, work: Path, report: Report, *arguments: str
) -> None:
    """Run `script` with the base's root, the work directory and `arguments`. It leaves the layer in `work/rootfs` and
    prints progress lines for `StepProgress`. Raises BuildError with the end of its output."""
    _write_apt_settings(work)
    command = [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
        *("sh", str(script), str(base_version.rootfs), str(work), *arguments),
    ]
    exit_code, output_end = base.run_build(command, StepProgress(report.update).feed)
    if exit_code:
        raise BuildError(f"Could not build template {name}. Last output:\n  " + "\n  ".join(output_end))
    for leftover in ("stage", "overlay", "merged"):
        if (work / leftover).exists():
            remove_tree(work / leftover)


def _write_apt_settings(work: Path) -> None:
    """Write the machine's apt settings (archives, proxies, keys) for the duration of the build."""
    settings = dict(trust.read_apt_settings())
    bundles = [value for key, value in settings.items() if key.lower().endswith("::cainfo")]
    bundle = Path(next(iter(bundles), trust.BUNDLE))
    (work / "ca.crt").write_bytes(bundle.read_bytes() if bundle.is_file() else b"")
    kept = {key: value for key, value in settings.items() if not key.lower().endswith("::cainfo")}
    kept["Acquire::https::CaInfo"] = "/tmp/ca.crt"  # noqa: S108 - in the template, during the build
    lines = [f'{key} "{value}";\n' for key, value in kept.items()]
    (work / "apt.conf").write_text("".join(lines))
