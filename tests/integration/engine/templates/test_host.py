from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandyard.engine.templates import host
from sandyard.engine.templates.folder import TemplateFolder
from tests.unit.engine.templates.conftest import Put


@pytest.fixture
def host_root(machine: Path, put: Put) -> Path:
    """A machine with programs and with private files."""
    put("usr/bin/tool", "#!/bin/sh\n", 0o755)
    put("usr/bin/sudo", "setuid", 0o4755)
    put("usr/lib/libx.so", "x")
    put("usr/local/etc/npmrc", "//registry.example/:_authToken=hunter2")
    put("usr/share/secret.conf", "hunter2", 0o640)
    put("usr/share/closed/file", "hunter2")
    (machine / "usr/share/closed").chmod(0o750)
    (machine / "bin").symlink_to("usr/bin")
    put("etc/passwd", "alice:x:1001:1001::/home/alice:/bin/sh\n")
    put("etc/shadow", "alice:hunter2hash:1::::::", 0o640)
    put("etc/ssh/ssh_host_ed25519_key", "hunter2", 0o600)
    put("etc/ssl/private/key.pem", "hunter2", 0o600)
    put("etc/ssl/certs/ca-certificates.crt", "public")
    put("etc/ld.so.conf", "/usr/lib\n")
    put("etc/hosts", "10.1.2.3 intranet\n")
    put("etc/resolv.conf", "nameserver 10.1.2.3\n")
    put("etc/os-release", 'PRETTY_NAME="Debian 12"\n')
    put("etc/alternatives/README", "x")
    (machine / "etc/alternatives/editor").symlink_to("/usr/bin/tool")
    put("root/.ssh/id_ed25519", "hunter2")
    put("home/alice/notes", "hunter2")
    put("var/lib/app/db", "hunter2")
    put("opt/app/config", "hunter2")
    return machine


@pytest.fixture
def tree(host_root: Path, folder: TemplateFolder) -> Path:
    return host.build(folder, host_root).rootfs


def read_all_files(tree: Path) -> dict[str, str]:
    return {str(p.relative_to(tree)): p.read_text() for p in tree.rglob("*") if p.is_file() and not p.is_symlink()}


def test_programs_keep_their_modes_and_links(tree: Path) -> None:
    assert os.access(tree / "usr/bin/tool", os.X_OK)
    assert stat.S_IMODE((tree / "usr/bin/sudo").stat().st_mode) == 0o4755
    assert (tree / "bin").readlink() == Path("usr/bin")
    assert (tree / "etc/alternatives/editor").readlink() == Path("/usr/bin/tool")
    assert (tree / "etc/ssl/certs/ca-certificates.crt").read_text() == "public"


def test_private_files_of_the_machine_are_left_out(tree: Path) -> None:
    texts = read_all_files(tree)
    assert not [path for path, text in texts.items() if "hunter2" in text]
    assert not [path for path, text in texts.items() if "alice" in text or "10.1.2.3" in text]
    for excluded in ("etc/ssh", "etc/ssl/private", "usr/local/etc", "usr/share/closed", "opt/app", "var/lib/app"):
        assert not (tree / excluded).exists(), excluded
    assert not list((tree / "root").glob(".ssh"))


def test_the_template_has_its_own_accounts(tree: Path) -> None:
    passwd = [line.split(":") for line in (tree / "etc/passwd").read_text().splitlines()]
    assert {row[0]: row[2] for row in passwd if row[0] in {"root", "user"}} == {"root": "0", "user": "1000"}
    groups = [line.split(":") for line in (tree / "etc/group").read_text().splitlines()]
    assert len({row[2] for row in groups}) == len(groups), "group ids are unique"
    assert all(line.split(":")[1] == "*" for line in (tree / "etc/shadow").read_text().splitlines())
    assert "NOPASSWD" in (tree / "etc/sudoers").read_text()
    assert stat.S_IMODE((tree / "etc/sudoers").stat().st_mode) == 0o440
    assert stat.S_IMODE((tree / "tmp").stat().st_mode) == 0o1777
    if os.geteuid() == 0:
        assert (tree / "home/user").stat().st_uid == 1000


def test_pip_and_npm_can_install_without_sudo(host_root: Path, folder: TemplateFolder, put: Put) -> None:
    put("usr/local/bin/mine", "#!/bin/sh\n", 0o755)
    put("usr/lib/python3.11/EXTERNALLY-MANAGED", "[externally-managed]\n")
    tree = host.build(folder, host_root).rootfs
    assert not (tree / "usr/lib/python3.11/EXTERNALLY-MANAGED").exists()
    for path in ("usr/local", "usr/local/bin"):
        status = (tree / path).stat()
        assert status.st_uid == 1000 or status.st_mode & 0o002, path
    assert (tree / "usr/bin").stat().st_uid != 1000
    assert (host_root / "usr/local/bin").stat().st_uid == os.geteuid(), "the machine's own directory is unchanged"


def test_files_are_linked_not_copied_on_one_file_system(host_root: Path, folder: TemplateFolder) -> None:
    version = host.build(folder, host_root)
    assert version.details["made of"] == "hard links"
    assert (version.rootfs / "usr/bin/tool").samefile(host_root / "usr/bin/tool")


def test_files_are_copied_with_owner_and_mode_where_hard_links_are_impossible(
    host_root: Path, folder: TemplateFolder, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("usr/share/doc/tool/readme", "long")
    (host_root / "usr/bin/alias").hardlink_to(host_root / "usr/bin/tool")
    link = os.link

    def link_only_inside(source: object, target: object, **options: bool) -> None:
        if Path(str(source)).is_relative_to(host_root):
            raise OSError(18, "Invalid cross-device link")
        link(str(source), str(target), **options)

    monkeypatch.setattr(os, "link", link_only_inside)
    version = host.build(folder, host_root)
    copy = version.rootfs / "usr/bin/tool"
    assert version.details["made of"] == "copies"
    assert not copy.samefile(host_root / "usr/bin/tool")
    assert copy.read_text() == "#!/bin/sh\n"
    assert stat.S_IMODE((version.rootfs / "usr/bin/sudo").stat().st_mode) == 0o4755
    assert (version.rootfs / "usr/bin/alias").samefile(copy), "hard links to one file stay hard links"
    assert not (version.rootfs / "usr/share/doc").exists(), "documentation is not copied"


def test_the_template_is_built_again_only_when_the_machine_changes(
    host_root: Path, folder: TemplateFolder, put: Put
) -> None:
    first = host.build(folder, host_root)
    assert host.build(folder, host_root) == first
    put("usr/bin/new", "#!/bin/sh\n", 0o755)
    second = host.build(folder, host_root)
    assert second != first
    assert (second.rootfs / "usr/bin/new").exists()
    assert (first.rootfs / "usr/bin/tool").exists(), "sandboxes may still use the old version"


def test_a_strict_umask_does_not_affect_the_template(host_root: Path, folder: TemplateFolder) -> None:
    before = os.umask(0o077)
    try:
        tree = host.build(folder, host_root).rootfs
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    closed = [str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_dir() and not p.stat().st_mode & 0o005]
    assert closed == ["root"]
