"""From a reference to layers: whole images, in layouts, archives and a registry that lies."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.images.model import Image
from sandyard.engine.images.registry_access import RegistryPolicy
from sandyard.engine.images.service import Images, Options
from sandyard.engine.settings import EngineSettings
from sandyard.kit.errors import (
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    SandyardError,
    UnreachableError,
    UnsupportedError,
)
from tests.images.made import Layout, archive, entry, folder, link, rootfs, saved, sha256, tar
from tests.images.server import Asked, Reply, serving

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="images are put together by root here; tests/conformance does it without"
)

SETTINGS = {"Env": ["PATH=/opt/tool:/bin", "A=b=c", "broken"], "User": "1000:1000", "WorkingDir": "/data"}
UPPER = tar(entry("data/.wh.old"), entry("data/new", "new", uid=70000))
_LOWER: list[bytes] = []


def lower() -> bytes:
    if not _LOWER:
        _LOWER.append(rootfs(folder("data", 0o750, uid=7, gid=8), entry("data/old", "old"), entry("data/kept", "kept")))
    return _LOWER[0]


class Place:
    def __init__(self, path: Path) -> None:
        self.allowed = path / "allowed"
        self.allowed.mkdir()
        self.folder = path / "images"
        self.said: list[str] = []
        self.options = Options(
            dirs=(self.allowed,),
            policy=RegistryPolicy(registries=frozenset({"127.0.0.1"})),
            reserve_bytes=0,
            carry_host_trust=False,
        )
        self.images = self.fresh()

    def fresh(self, **changes: Any) -> Images:
        images = Images(
            self.folder, Options(**{**{name: getattr(self.options, name) for name in Options.__slots__}, **changes})
        )
        images.prepare()
        return images

    async def resolve(self, name: str, images: Images | None = None) -> Image:
        return await (images or self.images).resolve(name, None, self.said.append)

    def layout(self, *layers: bytes, name: str = "app", **changes: Any) -> Path:
        layout = Layout(self.allowed / name)
        return layout.tag(layout.image(layers, SETTINGS, **changes))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def merged(image: Image, path: str) -> os.stat_result | None:
    """Of the topmost layer that has it, None behind a whiteout."""
    for layer in image.layers:
        if os.path.lexists(Path(layer, path)):
            found = Path(layer, path).lstat()
            return None if stat.S_ISCHR(found.st_mode) else found
    return None


async def test_a_layout_becomes_layers(place: Place) -> None:
    path = place.layout(lower(), UPPER)
    image = await place.resolve(f"oci:{path}")
    assert len(image.layers) == 3
    assert image.digest == json.loads((path / "index.json").read_text())["manifests"][0]["digest"]
    assert image.env == {"PATH": "/opt/tool:/bin", "A": "b=c"}
    assert image.user == "node" and image.workdir == "/data"
    assert merged(image, "data/old") is None and merged(image, "data/new") is not None
    data = merged(image, "data")
    assert data and (stat.S_IMODE(data.st_mode), data.st_uid, data.st_gid) == (
        0o750,
        7,
        8,
    )  # the upper one only implies it
    adapted = Path(image.layers[0])
    assert "user:x:1001:1001::/home/user:/bin/sh\n" in (adapted / "etc/passwd").read_text()  # 1000 is node's
    assert (adapted / "home/user").stat().st_uid == 1001
    assert stat.S_IMODE((adapted / "etc/sudoers.d/user").stat().st_mode) == 0o440
    assert (adapted / "etc/profile.d/00-image-path.sh").read_text() == "export PATH='/opt/tool:/bin'\n"
    assert stat.S_IMODE((adapted / "var/tmp").stat().st_mode) == 0o1777
    assert any("above id 65535" in line for line in place.said)
    assert not list(place.folder.glob("*/.partial-*")) and not list((place.folder / "spool").iterdir())
    assert await place.resolve(f"oci:{path}") == image


async def test_layers_are_shared_and_equal_ones_count_once(place: Place) -> None:
    empty = tar()
    first = await place.resolve(f"oci:{place.layout(lower(), UPPER, name='one')}")
    second = await place.resolve(f"oci:{place.layout(lower(), empty, UPPER, lower(), name='two')}")
    assert second.layers[1:] == (first.layers[2], first.layers[1])
    gone = await place.resolve(f"oci:{place.layout(lower(), tar(entry('data/.wh.kept')), name='gone')}")
    assert len(gone.layers) == 3 and merged(gone, "data/kept") is None  # what only takes away is not empty
    hidden = tar(entry(".wh..wh..opq"), *[(info, raw) for info, raw in [entry("marker")]])
    with pytest.raises(InvalidInputError, match="no /bin/sh"):  # an opaque root hides all below
        await place.resolve(f"oci:{place.layout(lower(), hidden, name='three')}")


async def test_archives(place: Place) -> None:
    path = place.layout(lower(), UPPER)
    whole = await place.resolve(f"oci:{path}:latest")
    assert await place.resolve(f"oci-archive:{archive(path, place.allowed / 'oci.tar')}") == whole
    file = saved(place.allowed / "saved.tar", [lower(), UPPER], "app:1", SETTINGS)
    from_docker = await place.resolve(f"docker-archive:{file}")
    assert from_docker.layers == whole.layers and from_docker.digest.startswith("sha256:")
    assert await place.resolve(f"docker-archive:{file}:app:1") == from_docker
    with pytest.raises(NotFoundError, match="app:1"):
        await place.resolve(f"docker-archive:{file}:other")
    with pytest.raises(NotFoundError, match=r"Tags in it: latest"):
        await place.resolve(f"oci:{path}:other")
    (place.allowed / "x.tar.gz").write_bytes(gzip.compress(file.read_bytes()))
    with pytest.raises(UnsupportedError, match="gunzip"):
        await place.resolve(f"docker-archive:{place.allowed}/x.tar.gz")
    (place.allowed / "noise.tar").write_bytes(b"noise" * 500)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        await place.resolve(f"oci-archive:{place.allowed}/noise.tar")


async def test_only_named_folders_are_read(place: Place, tmp_path: Path) -> None:
    place.layout(lower())
    outside = Layout(tmp_path / "outside")
    outside.tag(outside.image([lower()]))
    (place.allowed / "escape").symlink_to(tmp_path / "outside")
    (place.allowed / "inner").symlink_to("app")
    for name in (f"oci:{tmp_path}/outside", f"oci:{place.allowed}/../outside", f"oci:{place.allowed}/escape", "oci:/"):
        with pytest.raises(ForbiddenError):
            await place.resolve(name)
    await place.resolve(f"oci:{place.allowed}/inner")
    with pytest.raises(ForbiddenError, match="SANDYARD_IMAGES_DIRS"):
        await place.resolve(f"oci:{place.allowed}/app", place.fresh(dirs=()))
    with pytest.raises(NotFoundError, match="Could not open"):
        await place.resolve(f"oci:{place.allowed}/missing")
    with pytest.raises(InvalidInputError, match="tar file"):
        await place.resolve(f"oci-archive:{place.allowed}/app")
    blobs = place.allowed / "app/blobs"
    blobs.rename(tmp_path / "blobs")
    blobs.symlink_to(tmp_path / "blobs")  # not even within a layout
    with pytest.raises(NotFoundError):
        await place.resolve(f"oci:{place.allowed}/app")


async def test_what_is_not_for_this_machine(place: Place) -> None:
    path = place.layout(lower(), architecture="sparc")
    with pytest.raises(UnsupportedError, match="sparc"):
        await place.resolve(f"oci:{path}")
    layout = Layout(place.allowed / "index")
    other = {**layout.image([lower()], architecture="sparc"), "platform": {"os": "linux", "architecture": "sparc"}}
    odd = {**layout.image([lower()]), "platform": {"os": "unknown", "architecture": "unknown"}}
    layout.tag(layout.index([odd, other]), "theirs")
    ours = layout.image([lower()])
    layout.tag(layout.index([odd, other, ours]), "ours")
    with pytest.raises(UnsupportedError, match=r"It is available for linux/sparc"):
        await place.resolve(f"oci:{layout.path}:theirs")
    assert (await place.resolve(f"oci:{layout.path}:ours")).digest == ours["digest"]


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        ((tar(entry("f")),), "no /bin/sh"),
        ((tar(),), "empty"),
        ((tar(link("etc", "/tmp"), folder("bin"), entry("bin/sh", mode=0o755)),), "instead of the directory /etc"),
        (
            (
                tar(folder("usr/lib"), link("lib", "usr/lib"), folder("bin"), entry("bin/sh", mode=0o755)),
                tar(entry("lib/x")),
            ),
            "link in a lower",
        ),
    ],
)
async def test_what_can_not_be_a_sandbox(place: Place, layers: tuple[bytes, ...], match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        await place.resolve(f"oci:{place.layout(*layers)}")


async def test_hostile_files_are_not_read_and_not_written_through(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    layer = tar(
        folder("bin"),
        entry("bin/sh", mode=0o755),
        folder("etc"),
        entry("etc/passwd", kind=b"6"),  # a pipe, on which a reader would wait for ever
        link("etc/group", str(target)),
        link("etc/shadow", "/etc/shadow"),
        link("home", str(tmp_path)),
        link("tmp", str(tmp_path)),
    )
    image = await place.resolve(f"oci:{place.layout(layer)}")
    assert (Path(image.layers[0]) / "etc/passwd").read_text().startswith("root:x:0:0:")
    assert target.read_text() == "untouched" and not (tmp_path / "user").exists()
    assert "root:" not in (Path(image.layers[0]) / "etc/shadow").read_text()


async def test_the_machines_trust_goes_in(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandyard.engine.templates.trust import Trust  # noqa: PLC0415

    pem = "-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----"
    trust = Trust(
        (pem,),
        pip=(("index-url", "https://pypi.example/"),),
        env={"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"},
    )
    monkeypatch.setattr("sandyard.engine.images.service.read_trust", lambda: trust)
    images = place.fresh(carry_host_trust=True)
    own = "-----BEGIN CERTIFICATE-----\nQkJC\n-----END CERTIFICATE-----\n"
    layer = tar(entry("etc/pki/tls/certs/ca-bundle.crt", own), entry("etc/pip.conf", "own"))
    image = await place.resolve(f"oci:{place.layout(lower(), layer)}", images)
    top = Path(image.layers[0])
    for bundle in ("etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt"):
        assert "QUFB" in (top / bundle).read_text() and "QkJC" in (top / bundle).read_text()
    assert not (top / "etc/pip.conf").exists() and image.env["SSL_CERT_FILE"]


async def test_images_are_bounded(place: Place) -> None:
    path = place.layout(lower(), tar(entry("big", bytes(2 << 20))))
    with pytest.raises(InvalidInputError, match="images_max"):
        await place.resolve(f"oci:{path}", place.fresh(max_bytes=3 << 20))
    with pytest.raises(InvalidInputError, match="images_max"):
        await place.resolve(f"oci:{path}", place.fresh(max_files=20))


async def test_layers_that_nothing_needs_are_collected(place: Place) -> None:
    one = await place.resolve(f"oci:{place.layout(lower(), UPPER, name='one')}")
    two = await place.resolve(f"oci:{place.layout(lower(), tar(entry('x')), name='two')}")
    assert await place.images.collect(lambda _: False) == 0  # they were just asked for
    old = time.time() - 10 * 24 * 3600
    for file in place.folder.glob("*/*/layer.json"):
        os.utime(file, (old, old))
    assert await place.images.collect(lambda layer: layer in one.layers) == 2
    assert all(Path(layer).is_dir() for layer in one.layers)
    assert not Path(two.layers[0]).exists() and not Path(two.layers[1]).exists()
    assert await place.resolve(f"oci:{place.allowed}/two") == two


async def test_a_killed_engine_leaves_nothing_half_made(place: Place) -> None:
    path = place.layout(lower(), UPPER)
    task = asyncio.create_task(place.resolve(f"oci:{path}"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list(place.folder.glob("*/.partial-*"))
    (place.folder / "layers/.partial-x/fs").mkdir(parents=True)
    place.fresh()
    assert not list(place.folder.glob("*/.partial-*"))
    await asyncio.gather(*(place.resolve(f"oci:{path}") for _ in range(3)))


def test_settings_become_options(tmp_path: Path) -> None:
    settings = EngineSettings.load(
        {
            "SANDYARD_IMAGES_DIRS": f"{tmp_path}, /b",
            "SANDYARD_IMAGES_REGISTRIES": "LocalHost:5000",
            "SANDYARD_LAN": "allow",
        }
    )
    options = Options.from_settings(settings)
    assert options.dirs == (tmp_path, Path("/b"))
    assert options.policy == RegistryPolicy(frozenset({"localhost:5000"}), private=True)


# A registry -------------------------------------------------------------------------------------------------------------------


class Lying:
    """A registry over a layout, whose answers can be spoiled."""

    def __init__(self, layout: Path) -> None:
        self.layout = layout
        self.spoil: Callable[[Asked, Reply], Reply] = lambda _, reply: reply

    def __call__(self, asked: Asked) -> Reply:
        wanted = asked.path.rsplit("/", 1)[1]
        if wanted == "latest":
            wanted = json.loads((self.layout / "index.json").read_text())["manifests"][0]["digest"]
        file = self.layout / "blobs/sha256" / wanted.removeprefix("sha256:")
        reply = Reply(body=file.read_bytes()) if file.exists() else Reply(404)
        return self.spoil(asked, reply)


@pytest.fixture
async def lying(place: Place) -> AsyncIterator[tuple[Lying, str]]:
    registry = Lying(place.layout(lower(), UPPER))
    with serving(registry) as server:
        yield registry, f"{server.host}/app"


async def test_a_registry_gives_the_same_image(place: Place, lying: tuple[Lying, str]) -> None:
    registry, name = lying
    image = await place.resolve(name)
    assert image == await place.resolve(f"oci:{registry.layout}")
    assert await place.resolve(f"{name}@{image.digest}") == image
    with pytest.raises(NotFoundError):
        await place.resolve(f"{name}:other")
    with pytest.raises(NotFoundError):
        await place.resolve(f"{name}@{sha256(b'')}")


@pytest.mark.parametrize(
    ("part", "spoiled", "error"),
    [
        ("manifests", Reply(body=b"[]"), InvalidInputError),
        ("manifests", Reply(body=b"{" * 9_000_000), InvalidInputError),
        ("manifests", Reply(body=b'{"schemaVersion": 1}'), UnsupportedError),
        ("manifests", Reply(body=b'{"manifests": [{"digest": "sha256:0"}]}'), UnsupportedError),
        ("manifests", Reply(403), ForbiddenError),
        ("manifests", Reply(418), UnreachableError),
        ("blobs", Reply(body=b"{}"), SandyardError),
        ("blobs", Reply(500), UnreachableError),
    ],
)
async def test_a_registry_that_lies(
    place: Place,
    lying: tuple[Lying, str],
    part: str,
    spoiled: Reply,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandyard.engine.images.web._LONGEST_PAUSE", 0.01)
    registry, name = lying
    registry.spoil = lambda asked, reply: spoiled if f"/{part}/" in asked.path else reply
    with pytest.raises(error):
        await place.resolve(name)
    assert not list((place.folder / "layers").iterdir()) and not list((place.folder / "spool").iterdir())


async def test_a_layer_is_held_against_its_digest_and_a_broken_line_is_tried_again(
    place: Place, lying: tuple[Lying, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.images.web._LONGEST_PAUSE", 0.01)
    registry, name = lying
    cuts = []

    def other(asked: Asked, reply: Reply) -> Reply:
        return Reply(body=bytes(len(reply.body))) if reply.body.startswith(b"\x1f\x8b") else reply

    def cut(asked: Asked, reply: Reply) -> Reply:
        if reply.body.startswith(b"\x1f\x8b") and len(cuts) < 2:
            cuts.append(asked)
            return Reply(body=reply.body, cut=100)
        return reply

    registry.spoil = other
    with pytest.raises(InvalidInputError, match="digest and size"):
        await place.resolve(name)
    registry.spoil = cut
    await place.resolve(name)
    assert len(cuts) == 2
