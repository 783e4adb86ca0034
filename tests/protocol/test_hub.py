"""Test the verbs that name an image of Docker Hub, with a fake Docker Hub that the engine reaches through a proxy."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from e2b import AsyncTemplate, Sandbox, Template

from tests.harness.engine import Engine
from tests.images.image_files import MANIFEST, Layout, rootfs
from tests.images.server import ReceivedRequest, Reply, RunningServer, run_server

from .cli import find_node
from .compatibility.recording import javascript_environment

HUB = "registry-1.docker.io"
NAMES = ("alpine", "archlinux", "debian", "fedora", "node", "oven/bun", "python", "ubuntu")
FOLDER = Path(__file__).parent / "js"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A fake Docker Hub that serves the same small image under every name."""
    layout = Layout(tmp_path_factory.mktemp("hub"))
    manifest = layout.add_image([rootfs()], {"Env": ["PATH=/bin", "OF_IMAGE=yes"]})["digest"]

    def serve_image(request: ReceivedRequest) -> Reply:
        kind, _, name = urlsplit(request.path).path.rpartition("/")
        if kind.endswith("/manifests"):
            content = (layout.path / "blobs" / manifest.replace(":", "/")).read_bytes()
            return Reply(200, content, {"Content-Type": MANIFEST, "Docker-Content-Digest": manifest})
        if kind.endswith("/blobs"):
            return Reply(200, (layout.path / "blobs" / name.replace(":", "/")).read_bytes())
        return Reply(200)

    with run_server(serve_image) as served:
        yield served


@pytest.fixture(scope="module")
def behind_proxy(hub: RunningServer) -> Iterator[Engine]:
    engine = Engine({"IMAGES_INSECURE": HUB, "POOL_SIZE": "0"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", hub.url)
        patch.setenv("no_proxy", "127.0.0.1")
        engine.start()
    yield engine
    assert not engine.stop()


@pytest.fixture(autouse=True)
def use_engine_behind_proxy(behind_proxy: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in behind_proxy.environment.items():
        monkeypatch.setenv(name, value)


def requested_images(hub: RunningServer) -> set[str]:
    """Return the names of the images requested since the last call, in Docker Hub's spelling."""
    paths = {urlsplit(request.path).path for request in hub.requests if "/manifests/" in request.path}
    hub.requests.clear()
    return {path.removeprefix("/v2/").partition("/manifests/")[0].removeprefix("library/") for path in paths}


def test_templates_from_docker_hub_images(hub: RunningServer, unique: str) -> None:
    templates = [
        Template().from_alpine_image(),
        Template().from_arch_image(),
        Template().from_debian_image("bookworm"),
        Template().from_fedora_image(),
        Template().from_node_image("22"),
        Template().from_bun_image(),
        Template().from_python_image("3.12"),
        Template().from_ubuntu_image("24.04"),
        Template().from_image("debian:bookworm"),
    ]
    for number, template in enumerate(templates):
        Template.build(template.run_cmd("echo $OF_IMAGE > ~/made"), f"hub-{unique}-{number}")
    assert requested_images(hub) == set(NAMES)
    with Sandbox.create(f"hub-{unique}-2") as sandbox:
        assert sandbox.files.read("made") == "yes\n"
    assert Template.alias_exists(f"hub-{unique}-2")


@pytest.mark.slow
async def test_templates_from_docker_hub_images_async(hub: RunningServer, unique: str) -> None:
    templates = [
        AsyncTemplate().from_alpine_image(),
        AsyncTemplate().from_arch_image(),
        AsyncTemplate().from_debian_image(),
        AsyncTemplate().from_fedora_image(),
        AsyncTemplate().from_node_image(),
        AsyncTemplate().from_bun_image(),
        AsyncTemplate().from_python_image(),
        AsyncTemplate().from_ubuntu_image(),
        AsyncTemplate().from_image("docker.io/library/debian:stable"),
    ]
    names = [f"hub-async-{unique}-{number}" for number in range(len(templates))]
    pairs = zip(templates, names, strict=True)
    await asyncio.gather(*(AsyncTemplate.build(template, name) for template, name in pairs))
    assert requested_images(hub) == set(NAMES)
    assert [await AsyncTemplate.alias_exists(name) for name in names] == [True] * len(names)


@pytest.mark.slow
def test_templates_from_docker_hub_images_in_javascript(hub: RunningServer, behind_proxy: Engine) -> None:
    result = subprocess.run(
        [find_node(), "--test", "--test-reporter=spec", "hub/images.test.mjs"],
        cwd=FOLDER,
        env={**os.environ, **behind_proxy.environment, **javascript_environment("hub/images.test.mjs")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert requested_images(hub) == set(NAMES)
