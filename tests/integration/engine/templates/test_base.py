"""Build `base` with a script in place of mmdebstrap. Everything else is real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandyard.engine.templates import base, node, sources
from sandyard.engine.templates.base import BuildError, Recipe
from sandyard.engine.templates.folder import TemplateFolder
from sandyard.engine.templates.progress import ProgressLines

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="base is built by root only")
RELEASE = sources.Release("debian", "bookworm", "Debian 12")
ARCHIVES = [sources.Source("https://me:hunter2@mirror.example/debian", ("bookworm",), ("main",))]
WORKING_SCRIPT = """
for last; do :; done
mirror=$last
for root in "$@"; do case $root in */rootfs) break;; esac; done
mkdir -p "$root/etc/apt/sources.list.d" "$root/etc/apt/apt.conf.d" "$root/dev"
cp "$mirror" "$root/etc/apt/sources.list.d/0000host.sources"
echo 'Acquire::x "hunter2";' >"$root/etc/apt/apt.conf.d/99mmdebstrap"
: >"$root/dev/left"
echo "I: running apt-get update..."
"""
Install = Callable[[str], None]


class SilentReport:
    def update(self, fraction: float, doing: str) -> None: ...

    def finish(self, text: str) -> None: ...


@pytest.fixture
def mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(sources, "read_release", lambda: RELEASE)
    monkeypatch.setattr(sources, "read_sources", lambda _: ARCHIVES)

    def fetch(work: Path) -> Path:
        (work / "node").mkdir()
        return work / "node"

    monkeypatch.setattr(node, "fetch_node", fetch)

    def install(script: str) -> None:
        (programs / "mmdebstrap").write_text(f"#!/bin/sh\nset -eu\n{script}")
        (programs / "mmdebstrap").chmod(0o755)

    return install


def test_different_recipes_have_different_digests() -> None:
    recipe = Recipe(RELEASE, "aarch64", ("bash",))
    assert recipe.digest == Recipe(RELEASE, "aarch64", ("bash",)).digest
    others = [
        Recipe(RELEASE, "x86_64", ("bash",)),
        Recipe(RELEASE, "aarch64", ("bash", "git")),
        Recipe(sources.Release("debian", "trixie", "Debian 13"), "aarch64", ("bash",)),
    ]
    assert len({recipe.digest, *(other.digest for other in others)}) == 4


@as_root
def test_the_published_version_has_no_passwords_and_no_files_of_the_build(
    mmdebstrap: Install, folder: TemplateFolder
) -> None:
    mmdebstrap(WORKING_SCRIPT)
    version = base.build(folder, SilentReport())
    apt = version.rootfs / "etc/apt"
    texts = {str(p.relative_to(version.path)): p.read_text() for p in version.path.rglob("*") if p.is_file()}
    assert not [path for path, text in texts.items() if "hunter2" in text]
    assert "URIs: https://mirror.example/debian" in (apt / "sources.list.d/host.sources").read_text()
    assert sorted(p.name for p in version.path.iterdir()) == ["manifest.json", "rootfs", "size"]
    assert not list((version.rootfs / "dev").iterdir())


@as_root
def test_base_is_built_once_unless_forced(mmdebstrap: Install, folder: TemplateFolder) -> None:
    mmdebstrap(WORKING_SCRIPT)
    first = base.build(folder, SilentReport())
    mmdebstrap("exit 1")
    assert base.build(folder, SilentReport()) == first
    mmdebstrap(WORKING_SCRIPT)
    assert base.build(folder, SilentReport(), force=True) != first
    assert first.rootfs.exists()


@as_root
def test_a_failed_build_reports_the_end_of_its_log_and_leaves_nothing_behind(
    mmdebstrap: Install, folder: TemplateFolder
) -> None:
    mmdebstrap('for n in $(seq 100); do echo "line $n"; done\necho "E: Unable to locate package nonsense" >&2\nexit 25')
    with pytest.raises(BuildError) as failure:
        base.build(folder, SilentReport())
    assert "E: Unable to locate package nonsense" in failure.value.message
    assert "line 100" in failure.value.message
    assert "line 50\n" not in failure.value.message
    assert not list((folder.directory / "base").iterdir())


BUILDER = """
import sys
from pathlib import Path
from sandyard.engine.templates import base, node, sources
from sandyard.engine.templates.folder import TemplateFolder
from sandyard.engine.templates.progress import ProgressLines
sources.read_release = lambda: sources.Release("debian", "bookworm", "Debian 12")
sources.read_sources = lambda _: []
node.fetch_node = lambda work: work / "node"
base.build(TemplateFolder(Path(sys.argv[1])), ProgressLines("base", sys.stderr))
"""


def find_processes(marker: str) -> list[str]:
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (process / "cmdline").read_text():
                pids.append(process.name)
        except OSError:
            continue
    return pids


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


@as_root
def test_a_killed_builder_leaves_no_process_and_no_mount(
    mmdebstrap: Install, folder: TemplateFolder, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    mmdebstrap(f"mkdir -p {tmp_path}/mnt\nmount -t tmpfs none {tmp_path}/mnt\ntouch {started}\nsleep 3600 & wait")
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, str(folder.directory)], stderr=subprocess.DEVNULL)
    wait_until(started.exists)
    assert len(find_processes(str(folder.directory))) > 1, "the processes of the build must be visible to the test"
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    wait_until(lambda: not find_processes(str(folder.directory)))
    assert f"{tmp_path}/mnt" not in Path("/proc/self/mountinfo").read_text()
    assert not folder.list_versions("base")


def test_progress_is_printed_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLines("base", sys.stderr).update(0.5, "half")
    assert capsys.readouterr().err == "base: 50% half\n"
