"""The scripts of `sandyard setup gvisor` and `sandyard setup criu`, with programs in place of apt's."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import pytest

TOOLS = "bash cat chmod cp find flock grep head id ln mkdir mktemp mv printf rm sed sh sort touch".split()
APT = """#!/bin/bash
suite=machine
for argument; do
    case "$argument" in
        Dir::Etc::sourceparts=*) suite=$(sed -n 's/^Suites: //p' "${argument#*=}/later.sources") ;;
        Dir::Cache::archives=*) archives=${argument#*=} ;;
    esac
done
version=$(cat "$VERSIONS/$suite" 2>/dev/null)
case "$*" in
    *indextargets*) echo "bookworm http://mirror.invalid/debian" ;;
    *update*) [ -n "$version" ] ;;
    *policy*) echo "  Candidate: ${version:-(none)}" ;;
    *show*) echo "Version: $version" ;;
    *download*) echo "$version" >"${archives:-.}/package.deb" ;;
    *install*) printf '#!/bin/sh\\necho "Version: %s"\\n' "$version" >"$BIN/$PROGRAM" && chmod 755 "$BIN/$PROGRAM" ;;
esac
"""
DPKG_DEB = """#!/bin/bash
root=$3
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/lib"
for path in usr/bin/runsc usr/sbin/criu; do
    printf '#!/bin/sh\\necho "Version: %s"\\n' "$(cat "$2")" >"$root/$path"
    chmod 755 "$root/$path"
done
touch "$root/lib/libc.so.6"
printf '#!/bin/sh\\nshift 2\\nexec "$@"\\n' >"$root/lib/ld-linux.so"
"""


@dataclass
class Machine:
    """A machine whose programs are in one directory. `versions` has the version of a program in each suite, and in `machine`, where
    apt installs from."""

    folder: Path
    program: str
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the script that installs the program."""
        for name in ("bin", "versions"):
            (self.folder / name).mkdir(exist_ok=True)
        for tool in TOOLS:
            if path := shutil.which(tool):
                (self.bin / tool).unlink(missing_ok=True)
                (self.bin / tool).symlink_to(path)
        self.add_program("id", "#!/bin/sh\necho 0\n")
        self.add_program("uname", "#!/bin/sh\necho 6.12.0\n")
        self.add_program("apt-get", APT)
        self.add_program("apt-cache", APT)
        self.add_program("dpkg-deb", DPKG_DEB)
        for suite, version in self.versions.items():
            (self.folder / "versions" / suite).write_text(version)
        (self.folder / "debian-archive-keyring.gpg").touch()
        (self.folder / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
        scripts = files("sandyard.cli.setup")
        name = {"runsc": "gvisor", "criu": "criu"}[self.program]
        script = (scripts / "later_release.sh").read_text() + (scripts / f"{name}.sh").read_text()
        for path in ("/etc", "/usr/share/keyrings", "/var/lib/sandyard"):
            script = script.replace(f"{path}/", f"{self.folder}/")
        environment = {
            "PATH": str(self.bin),
            "BIN": str(self.bin),
            "VERSIONS": str(self.folder / "versions"),
            "PROGRAM": self.program,
        }
        return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)

    def add_program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)


@pytest.fixture(params=["runsc", "criu"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


OLD = {"runsc": "0.0~20240101.0-1", "criu": "3.17"}
NEW = {"runsc": "0.0~20250101.0-1", "criu": "4.2-1"}
FOLDER = {"runsc": "gvisor", "criu": "criu"}


def test_a_program_that_is_installed_and_new_enough_is_used(machine: Machine) -> None:
    machine.bin.mkdir()
    machine.add_program(machine.program, f'#!/bin/sh\necho "Version: {NEW[machine.program]}"\n')
    result = machine.run()
    assert (result.returncode, result.stdout) == (0, f"{machine.bin / machine.program}\n"), result.stderr


def test_the_machines_own_package_is_preferred(machine: Machine) -> None:
    machine.versions = {"machine": NEW[machine.program], "testing": NEW[machine.program]}
    result = machine.run()
    assert (result.returncode, result.stdout) == (0, f"{machine.bin / machine.program}\n"), result.stderr


def test_the_first_later_release_that_is_new_enough_is_unpacked(machine: Machine) -> None:
    machine.versions = {
        "machine": OLD[machine.program],
        "stable": OLD[machine.program],
        "testing": NEW[machine.program],
    }
    result = machine.run()
    unpacked = machine.folder / FOLDER[machine.program] / machine.program
    assert (result.returncode, result.stdout) == (0, f"{unpacked}\n"), result.stderr
    assert f"stable has {machine.program} {OLD[machine.program]}, but" in result.stderr
    printed = subprocess.run([unpacked, "--version"], capture_output=True, text=True, check=True, env=os.environ)
    assert printed.stdout == f"Version: {NEW[machine.program]}\n"
    assert not list(unpacked.parent.glob(".get.*")), "what was downloaded is removed"
    machine.versions.clear()
    assert machine.run().stdout == f"{unpacked}\n"


def test_a_machine_without_a_release_that_is_new_enough_says_so(machine: Machine) -> None:
    machine.versions = {"machine": OLD[machine.program], "unstable": OLD[machine.program]}
    result = machine.run()
    assert (result.returncode, result.stdout) == (1, "")
    assert "no usable package list for testing" in result.stderr
    assert f"no release on this machine's mirror has {machine.program} " in result.stderr.splitlines()[-1]
