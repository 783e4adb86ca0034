"""Our client against a real registry that was filled with skopeo: neither program is ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.engine.drivers.layer_names import IMAGE, LayerLocation, find_layers
from sandyard.engine.images.model import RegistryAuth
from sandyard.engine.images.registry_access import RegistryPolicy
from sandyard.engine.images.service import Images, Options
from sandyard.kit.errors import ForbiddenError, NotFoundError
from tests.images import registry as registries
from tests.images.image_files import Layout, entry, rootfs, tar
from tests.images.registry import PASSWORD, USER, RealRegistry

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="images are assembled by root here")

LOGIN = RegistryAuth.parse({"type": "registry", "username": USER, "password": PASSWORD})
WRONG = RegistryAuth.parse({"type": "registry", "username": USER, "password": "looking-glass"})


@pytest.fixture(params=[pytest.param("password", marks=pytest.mark.slow), "tokens"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealRegistry]:
    start = registries.with_password if request.param == "password" else registries.with_tokens
    with start(tmp_path / "registry") as running:
        yield running


async def test_images_are_pulled_with_the_right_credentials(registry: RealRegistry, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "oci")
    layout.tag(layout.add_index([layout.add_image([rootfs(), tar(entry("hello", "world"))], {"Env": ["A=b"]})]))
    name = registry.push(f"oci:{layout.path}", "team/app:1")
    host = registry.host
    images = Images(
        tmp_path / "images",
        Options(dirs=(tmp_path,), policy=RegistryPolicy(registries=frozenset({"127.0.0.1"})), reserve_bytes=0),
    )
    images.prepare()
    local = await images.resolve(f"oci:{layout.path}", None, lambda _: None)
    for options in ([], ["--format=v2s2"], ["--dest-compress-format=zstd"]):
        variant = f"{host}/team/app:{len(options)}{options[-1][-4:] if options else ''}"
        credentials = ["--src-creds", f"{USER}:{PASSWORD}", "--dest-creds", f"{USER}:{PASSWORD}"]
        flags = ["--src-tls-verify=false", "--dest-tls-verify=false", *credentials, *options]
        subprocess.run(
            ["skopeo", "--insecure-policy", "copy", "-q", *flags, f"docker://{name}", f"docker://{variant}"], check=True
        )
        fresh = Images(
            tmp_path / f"images{variant[-4:]}",
            Options(policy=RegistryPolicy(registries=frozenset({"127.0.0.1"})), reserve_bytes=0),
        )
        fresh.prepare()
        pulled = await fresh.resolve(variant, LOGIN, lambda _: None)
        assert pulled.env == local.env and len(pulled.layers) == 3
        locations = {IMAGE: LayerLocation(tmp_path / f"images{variant[-4:]}", "fs")}
        assert Path(find_layers(pulled.layers, locations)[1], "hello").read_text() == "world"
    assert (await images.resolve(name, LOGIN, lambda _: None)).layers == local.layers
    for auth in (None, WRONG):
        with pytest.raises(ForbiddenError):
            await images.resolve(name, auth, lambda _: None)
    for missing in ("team/app:none", "team/none"):
        with pytest.raises(NotFoundError):
            await images.resolve(f"{host}/{missing}", LOGIN, lambda _: None)


async def test_archives_written_by_skopeo_are_read(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "oci")
    layout.tag(layout.add_image([rootfs(), tar(entry("hello", "world"))]))
    images = Images(tmp_path / "images", Options(dirs=(tmp_path,), reserve_bytes=0))
    images.prepare()
    local = await images.resolve(f"oci:{layout.path}", None, lambda _: None)
    for archive in (f"oci-archive:{tmp_path}/a.tar:v1", f"docker-archive:{tmp_path}/b.tar:app:v1"):
        subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout.path}", archive], check=True)
        assert (await images.resolve(archive, None, lambda _: None)).layers == local.layers
