"""Building a layer, with a script in place of packages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandyard.engine.templates import layered
from sandyard.engine.templates.base import BuildError
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion
from tests.integration.engine.templates.harness import publish

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")

SCRIPT_START = f"""set -eu
. {layered.SCRIPT}
open_root "$1" "$2"
"""


class RecordingReport:
    """A report that records its steps."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, str]] = []

    def update(self, fraction: float, doing: str) -> None:
        self.steps.append((fraction, doing))

    def finish(self, text: str) -> None:
        pass


@pytest.fixture
def base_version(folder: TemplateFolder) -> TemplateVersion:
    version = publish(folder, "base", "b1")
    for name in ("dev", "proc", "tmp"):
        (version.rootfs / name).mkdir()
    (version.rootfs / "etc/resolv.conf").touch()
    return version


def build_layer(base_version: TemplateVersion, tmp_path: Path, script: str) -> tuple[Path, RecordingReport]:
    work, report = tmp_path / "work", RecordingReport()
    work.mkdir()
    (tmp_path / "script.sh").write_text(SCRIPT_START + script)
    layered.build_layer("a-test", tmp_path / "script.sh", base_version, work, report, "an argument")
    return work, report


def test_the_layer_has_the_files_of_the_script_and_the_base_is_unchanged(
    base_version: TemplateVersion, tmp_path: Path
) -> None:
    script = """
    echo "step 0.5 writing"
    open_archives "$2"
    test -s "$root/tmp/apt.conf"
    close_archives
    echo "$3" >"$root/etc/added"
    head -c 4 "$root/dev/urandom" >"$root/dev/null"
    close_root
    """
    work, report = build_layer(base_version, tmp_path, script)
    assert (work / ROOTFS / "etc/added").read_text() == "an argument\n"
    assert report.steps == [(0.5, "writing")]
    assert sorted(path.name for path in (base_version.rootfs / "etc").iterdir()) == ["resolv.conf"]
    assert not (work / "merged").exists()


def test_files_of_the_machine_cannot_be_removed_through_the_new_root(
    base_version: TemplateVersion, tmp_path: Path
) -> None:
    """A broken script may remove everything below the new root."""
    script = """
    open_archives "$2"
    for place in dev dev/pts proc etc/resolv.conf; do stat -c "$place %d:%i" "$root/$place"; done >"$2/seen"
    umount "$root/etc/resolv.conf"
    close_root
    """
    work, _ = build_layer(base_version, tmp_path, script)
    for line in (work / "seen").read_text().splitlines():
        name, _, identity = line.partition(" ")
        host = Path("/", name).stat()
        assert identity != f"{host.st_dev}:{host.st_ino}", name


def test_a_root_that_is_in_use_is_not_removed(base_version: TemplateVersion, tmp_path: Path) -> None:
    script = """
    echo kept >"$root/etc/kept"
    exec 9<"$root/dev/null"
    close_root
    rm -rf "$root"
    """
    with pytest.raises(BuildError, match="target is busy"):
        build_layer(base_version, tmp_path, script)
    assert (tmp_path / "work" / ROOTFS / "etc/kept").read_text() == "kept\n"
