"""Test the wheel for users without a clone or Node: it contains the web application and serves it."""

from __future__ import annotations

import contextlib
import hashlib
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
from tests.harness.wheel import STATIC, build_wheel
from tests.proof.record import record

SECONDS = 90


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as in `make wheel`."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_a_second_build_is_the_same_byte_for_byte(wheel: Path, tmp_path: Path) -> None:
    assert build_wheel(tmp_path).read_bytes() == wheel.read_bytes()
    record({"builds": 2}, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())


@pytest.mark.slow
def test_the_wheel_contains_the_web_application(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.removeprefix(STATIC) for name in archive.namelist() if name.startswith(STATIC)}
        page = archive.read(f"{STATIC}index.html").decode()
        sample = [name for name in archive.namelist() if "/sample-repository/" in name]
    assert "index.html.gz" in names and ".stamp" not in names
    references = re.findall(r'(?:src|href)="/([^"]+)"', page)
    assert any(name.startswith("assets/") for name in references) and set(references) <= names, (
        "the wheel must contain every file that the page references"
    )
    assert "<script>" not in page and " style=" not in page, (
        "the content security policy forbids inline scripts and styles"
    )
    assert any(name.endswith("/.gitignore") for name in sample) and any(name.endswith("/text.py") for name in sample)


@pytest.fixture
def platform_url(wheel: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a platform from the wheel in its own environment. It uses the dependencies of this environment, to save minutes."""
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
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    tools = tmp_path / "bin"  # git, and no Node
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git") or "/usr/bin/git")
    port = free_port()
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("SANDYARD_", "E2B_", "PYTHON"))
    }
    variables |= {"PATH": str(tools), "SANDYARD_PORT": str(port), "SANDYARD_DATA_DIR": str(tmp_path / "data")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [folder / "bin" / "sandyard", "platform"], cwd=tmp_path, env=variables, stdout=log, stderr=log
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
def test_an_installed_wheel_serves_the_web_application(platform_url: str) -> None:
    with httpx.Client(base_url=platform_url, headers={"Accept": "text/html", "Accept-Encoding": "gzip"}) as browser:
        page = browser.get("/")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert browser.get("/projects/of/nobody").text == page.text, (
            "other paths must return the page, for the router in the browser"
        )
        for name in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
            response = browser.get(name)
            assert response.status_code == 200 and response.content, name
            assert response.headers.get("content-encoding") == "gzip" or len(response.content) < 2000, name
        assert browser.get("/api/v1/nothing").status_code == 404
        assert browser.post("/api/v1/projects/sample").status_code == 401
