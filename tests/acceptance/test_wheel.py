"""The wheel, as somebody gets it who has neither a clone nor Node: the web application is in it, and is served from it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandyard.kit.listen import free_port
from tests.protocol.engine import ROOT

STATIC = "sandyard/platform/static/"
SECONDS = 90


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make wheel` makes it."""
    assert (ROOT / "src" / STATIC / "index.html").exists(), "the web is not built: `make web` builds it"
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *quiet, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (made,) = folder.glob("sandyard-*.whl")
    return made


@pytest.mark.slow
def test_the_web_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.removeprefix(STATIC) for name in archive.namelist() if name.startswith(STATIC)}
        page = archive.read(f"{STATIC}index.html").decode()
        sample = [name for name in archive.namelist() if "/sample-repository/" in name]
    assert "index.html.gz" in names and ".stamp" not in names
    wanted = re.findall(r'(?:src|href)="/([^"]+)"', page)
    assert any(name.startswith("assets/") for name in wanted) and set(wanted) <= names, "a page's files come with it"
    assert "<script>" not in page and " style=" not in page, "nothing inline: the policy of pages forbids it"
    assert any(name.endswith("/.gitignore") for name in sample) and any(name.endswith("/text.py") for name in sample)


@pytest.fixture
def served(wheel: Path, tmp_path: Path) -> Iterator[str]:
    """A platform from the wheel in an environment of its own; what it depends on is lent by ours, to save minutes."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--python",
        str(folder / "bin" / "python"),
    ]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel)], check=True)
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    tools = tmp_path / "bin"  # git, and no Node
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git") or "/usr/bin/git")
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SANDYARD_", "E2B_", "PYTHON"))}
    clean |= {"PATH": str(tools), "SANDYARD_PORT": str(port), "SANDYARD_DATA_DIR": str(tmp_path / "data")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [folder / "bin" / "sandyard", "platform"], cwd=tmp_path, env=clean, stdout=log, stderr=log
        )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + SECONDS
    try:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
def test_the_web_is_served_from_it(served: str) -> None:
    with httpx.Client(base_url=served, headers={"Accept": "text/html", "Accept-Encoding": "gzip"}) as browser:
        page = browser.get("/")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert browser.get("/projects/of/nobody").text == page.text, "the browser's router takes it from there"
        for name in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
            answer = browser.get(name)
            assert answer.status_code == 200 and answer.content, name
            assert answer.headers.get("content-encoding") == "gzip" or len(answer.content) < 2000, name
        assert browser.get("/api/v1/nothing").status_code == 404
        assert browser.post("/api/v1/projects/sample").status_code == 401
