"""Test resolving references to layers: complete images from layouts, archives and a faulty registry."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.drivers.layer_names import IMAGE, LayerLocation, find_layers
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
from tests.images.image_files import (
    Layout,
    entry,
    folder,
    link,
    rootfs,
    sha256,
    tar,
    write_archive,
    write_docker_archive,
)
from tests.images.server import ReceivedRequest, Reply, run_server

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="images are assembled by root here; tests/conformance does it without root"
)

SETTINGS = {"Env": ["PATH=/opt/tool:/bin", "A=b=c", "broken"], "User": "1000:1000", "WorkingDir": "/data"}
UPPER = tar(entry("data/.wh.old"), entry("data/new", "new", uid=70000))
_LOWER: list[bytes] = []


def lower_layer() -> bytes:
    if not _LOWER:
        _LOWER.append(rootfs(folder("data", 0o750, uid=7, gid=8), entry("data/old", "old"), entry("data/kept", "kept")))
    return _LOWER[0]


class ImagesHarness:
    def __init__(self, path: Path) -> None:
        self.allowed = path / "allowed"
        self.allowed.mkdir()
        self.folder = path / "images"
        self.reports: list[str] = []
        self.options = Options(
            dirs=(self.allowed,),
            policy=RegistryPolicy(registries=frozenset({"127.0.0.1"})),
            reserve_bytes=0,
            carry_host_trust=False,
        )
        self.images = self.open_images()

    def open_images(self, **changes: Any) -> Images:
        images = Images(
            self.folder, Options(**{**{name: getattr(self.options, name) for name in Options.__slots__}, **changes})
        )
        images.prepare()
        return images

    async def resolve(self, name: str, images: Images | None = None) -> Image:
        return await (images or self.images).resolve(name, None, self.reports.append)

    def layout(self, *layers: bytes, name: str = "app", **changes: Any) -> Path:
        layout = Layout(self.allowed / name)
        return layout.tag(layout.add_image(layers, SETTINGS, **changes))


@pytest.fixture
def harness(tmp_path: Path) -> ImagesHarness:
    return ImagesHarness(tmp_path)


def find_paths(harness: ImagesHarness, image: Image) -> list[Path]:
    """Return the directories of an image's layers, topmost first."""
    return [Path(path) for path in find_layers(image.layers, {IMAGE: LayerLocation(harness.folder, "fs")})]


def stat_merged(harness: ImagesHarness, image: Image, path: str) -> os.stat_result | None:
    """Return the status of a path in the topmost layer that has it, or None if that is a whiteout."""
    for layer in find_paths(harness, image):
        if os.path.lexists(Path(layer, path)):
            status = Path(layer, path).lstat()
            return None if stat.S_ISCHR(status.st_mode) else status
    return None


async def test_a_layout_becomes_layers(harness: ImagesHarness) -> None:
    path = harness.layout(lower_layer(), UPPER)
    image = await harness.resolve(f"oci:{path}")
    assert len(image.layers) == 3
    assert image.digest == json.loads((path / "index.json").read_text())["manifests"][0]["digest"]
    assert image.env == {"PATH": "/opt/tool:/bin", "A": "b=c"}
    assert image.user == "node" and image.workdir == "/data"
    assert stat_merged(harness, image, "data/old") is None and stat_merged(harness, image, "data/new") is not None
    data = stat_merged(harness, image, "data")
    # the upper layer only implies it
    assert data and (stat.S_IMODE(data.st_mode), data.st_uid, data.st_gid) == (
        0o750,
        7,
        8,
    )
    adapted = find_paths(harness, image)[0]
    assert "user:x:1001:1001::/home/user:/bin/sh\n" in (adapted / "etc/passwd").read_text()  # 1000 is the id of node
    assert (adapted / "home/user").stat().st_uid == 1001
    assert stat.S_IMODE((adapted / "etc/sudoers.d/user").stat().st_mode) == 0o440
    assert (adapted / "etc/profile.d/00-image-path.sh").read_text() == "export PATH='/opt/tool:/bin'\n"
    assert stat.S_IMODE((adapted / "var/tmp").stat().st_mode) == 0o1777
    assert any("above id 65535" in line for line in harness.reports)
    assert not list(harness.folder.glob("*/.partial-*")) and not list((harness.folder / "spool").iterdir())
    assert await harness.resolve(f"oci:{path}") == image


async def test_layers_are_shared_and_duplicates_are_dropped(harness: ImagesHarness) -> None:
    empty = tar()
    first = await harness.resolve(f"oci:{harness.layout(lower_layer(), UPPER, name='one')}")
    second = await harness.resolve(f"oci:{harness.layout(lower_layer(), empty, UPPER, lower_layer(), name='two')}")
    assert second.layers[1:] == (first.layers[2], first.layers[1])
    with_whiteout = await harness.resolve(
        f"oci:{harness.layout(lower_layer(), tar(entry('data/.wh.kept')), name='gone')}"
    )
    # a layer with only a whiteout is not empty
    assert len(with_whiteout.layers) == 3 and stat_merged(harness, with_whiteout, "data/kept") is None
    hidden = tar(entry(".wh..wh..opq"), *[(info, raw) for info, raw in [entry("marker")]])
    with pytest.raises(InvalidInputError, match="no /bin/sh"):  # an opaque root hides all layers below
        await harness.resolve(f"oci:{harness.layout(lower_layer(), hidden, name='three')}")


async def test_archives_give_the_same_image_as_their_layout(harness: ImagesHarness) -> None:
    path = harness.layout(lower_layer(), UPPER)
    whole = await harness.resolve(f"oci:{path}:latest")
    assert await harness.resolve(f"oci-archive:{write_archive(path, harness.allowed / 'oci.tar')}") == whole
    file = write_docker_archive(harness.allowed / "saved.tar", [lower_layer(), UPPER], "app:1", SETTINGS)
    from_docker = await harness.resolve(f"docker-archive:{file}")
    assert from_docker.layers == whole.layers and from_docker.digest.startswith("sha256:")
    assert await harness.resolve(f"docker-archive:{file}:app:1") == from_docker
    with pytest.raises(NotFoundError, match="app:1"):
        await harness.resolve(f"docker-archive:{file}:other")
    with pytest.raises(NotFoundError, match=r"Tags in it: latest"):
        await harness.resolve(f"oci:{path}:other")
    (harness.allowed / "x.tar.gz").write_bytes(gzip.compress(file.read_bytes()))
    with pytest.raises(UnsupportedError, match="gunzip"):
        await harness.resolve(f"docker-archive:{harness.allowed}/x.tar.gz")
    (harness.allowed / "noise.tar").write_bytes(b"noise" * 500)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        await harness.resolve(f"oci-archive:{harness.allowed}/noise.tar")


async def test_only_allowed_folders_are_read(harness: ImagesHarness, tmp_path: Path) -> None:
    harness.layout(lower_layer())
    outside = Layout(tmp_path / "outside")
    outside.tag(outside.add_image([lower_layer()]))
    (harness.allowed / "escape").symlink_to(tmp_path / "outside")
    (harness.allowed / "inner").symlink_to("app")
    for name in (
        f"oci:{tmp_path}/outside",
        f"oci:{harness.allowed}/../outside",
        f"oci:{harness.allowed}/escape",
        "oci:/",
    ):
        with pytest.raises(ForbiddenError):
            await harness.resolve(name)
    await harness.resolve(f"oci:{harness.allowed}/inner")
    with pytest.raises(ForbiddenError, match="SANDYARD_IMAGES_DIRS"):
        await harness.resolve(f"oci:{harness.allowed}/app", harness.open_images(dirs=()))
    with pytest.raises(NotFoundError, match="Could not open"):
        await harness.resolve(f"oci:{harness.allowed}/missing")
    with pytest.raises(InvalidInputError, match="tar file"):
        await harness.resolve(f"oci-archive:{harness.allowed}/app")
    blobs = harness.allowed / "app/blobs"
    blobs.rename(tmp_path / "blobs")
    blobs.symlink_to(tmp_path / "blobs")  # links are not followed within a layout either
    with pytest.raises(NotFoundError):
        await harness.resolve(f"oci:{harness.allowed}/app")


async def test_images_for_another_architecture_are_rejected(harness: ImagesHarness) -> None:
    path = harness.layout(lower_layer(), architecture="sparc")
    with pytest.raises(UnsupportedError, match="sparc"):
        await harness.resolve(f"oci:{path}")
    layout = Layout(harness.allowed / "index")
    other = {
        **layout.add_image([lower_layer()], architecture="sparc"),
        "platform": {"os": "linux", "architecture": "sparc"},
    }
    odd = {**layout.add_image([lower_layer()]), "platform": {"os": "unknown", "architecture": "unknown"}}
    layout.tag(layout.add_index([odd, other]), "theirs")
    ours = layout.add_image([lower_layer()])
    layout.tag(layout.add_index([odd, other, ours]), "ours")
    with pytest.raises(UnsupportedError, match=r"It is available for linux/sparc"):
        await harness.resolve(f"oci:{layout.path}:theirs")
    assert (await harness.resolve(f"oci:{layout.path}:ours")).digest == ours["digest"]


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
async def test_images_that_cannot_become_a_sandbox_are_rejected(
    harness: ImagesHarness, layers: tuple[bytes, ...], match: str
) -> None:
    with pytest.raises(InvalidInputError, match=match):
        await harness.resolve(f"oci:{harness.layout(*layers)}")


async def test_pipes_and_links_of_an_image_are_not_followed(harness: ImagesHarness, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    layer = tar(
        folder("bin"),
        entry("bin/sh", mode=0o755),
        folder("etc"),
        entry("etc/passwd", kind=b"6"),  # a pipe, on which a reader would block forever
        link("etc/group", str(target)),
        link("etc/shadow", "/etc/shadow"),
        link("home", str(tmp_path)),
        link("tmp", str(tmp_path)),
    )
    image = await harness.resolve(f"oci:{harness.layout(layer)}")
    assert (find_paths(harness, image)[0] / "etc/passwd").read_text().startswith("root:x:0:0:")
    assert target.read_text() == "untouched" and not (tmp_path / "user").exists()
    assert "root:" not in (find_paths(harness, image)[0] / "etc/shadow").read_text()


async def test_the_trust_settings_of_the_host_are_added(
    harness: ImagesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandyard.engine.templates.trust import Trust  # noqa: PLC0415

    pem = "-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----"
    trust = Trust(
        (pem,),
        pip=(("index-url", "https://pypi.example/"),),
        env={"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"},
    )
    monkeypatch.setattr("sandyard.engine.images.service.read_trust", lambda: trust)
    images = harness.open_images(carry_host_trust=True)
    own = "-----BEGIN CERTIFICATE-----\nQkJC\n-----END CERTIFICATE-----\n"
    layer = tar(entry("etc/pki/tls/certs/ca-bundle.crt", own), entry("etc/pip.conf", "own"))
    image = await harness.resolve(f"oci:{harness.layout(lower_layer(), layer)}", images)
    top = find_paths(harness, image)[0]
    for bundle in ("etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt"):
        assert "QUFB" in (top / bundle).read_text() and "QkJC" in (top / bundle).read_text()
    assert not (top / "etc/pip.conf").exists() and image.env["SSL_CERT_FILE"]


async def test_images_over_the_limits_are_rejected(harness: ImagesHarness) -> None:
    path = harness.layout(lower_layer(), tar(entry("big", bytes(2 << 20))))
    with pytest.raises(InvalidInputError, match="images_max"):
        await harness.resolve(f"oci:{path}", harness.open_images(max_bytes=3 << 20))
    with pytest.raises(InvalidInputError, match="images_max"):
        await harness.resolve(f"oci:{path}", harness.open_images(max_files=20))


async def test_unused_layers_are_collected(harness: ImagesHarness) -> None:
    one = await harness.resolve(f"oci:{harness.layout(lower_layer(), UPPER, name='one')}")
    two = await harness.resolve(f"oci:{harness.layout(lower_layer(), tar(entry('x')), name='two')}")
    assert await harness.images.collect(lambda _: False) == 0  # they were used just now
    old = time.time() - 10 * 24 * 3600
    for file in harness.folder.glob("*/*/layer.json"):
        os.utime(file, (old, old))
    assert await harness.images.collect(lambda layer: layer in one.layers) == 2
    assert all(path.is_dir() for path in find_paths(harness, one))
    assert [path.is_dir() for path in find_paths(harness, two)] == [False, False, True]
    assert await harness.resolve(f"oci:{harness.allowed}/two") == two


async def test_layers_in_records_of_earlier_versions_are_not_collected(harness: ImagesHarness) -> None:
    """They are recorded with their paths."""
    image = await harness.resolve(f"oci:{harness.layout(lower_layer(), UPPER)}")
    old = time.time() - 10 * 24 * 3600
    for file in harness.folder.glob("*/*/layer.json"):
        os.utime(file, (old, old))
    recorded = [str(path) for path in find_paths(harness, image)]
    assert await harness.images.collect(lambda layer: layer in recorded) == 0
    assert await harness.images.collect(lambda layer: layer in recorded[1:]) == 1


async def test_an_interrupted_pull_leaves_no_partial_layer(harness: ImagesHarness) -> None:
    path = harness.layout(lower_layer(), UPPER)
    task = asyncio.create_task(harness.resolve(f"oci:{path}"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list(harness.folder.glob("*/.partial-*"))
    (harness.folder / "layers/.partial-x/fs").mkdir(parents=True)
    harness.open_images()
    assert not list(harness.folder.glob("*/.partial-*"))
    await asyncio.gather(*(harness.resolve(f"oci:{path}") for _ in range(3)))


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


class FaultyRegistry:
    """A registry that serves a layout. `change_reply` can replace its replies."""

    def __init__(self, layout: Path) -> None:
        self.layout = layout
        self.change_reply: Callable[[ReceivedRequest, Reply], Reply] = lambda _, reply: reply

    def __call__(self, request: ReceivedRequest) -> Reply:
        digest = request.path.rsplit("/", 1)[1]
        if digest == "latest":
            digest = json.loads((self.layout / "index.json").read_text())["manifests"][0]["digest"]
        file = self.layout / "blobs/sha256" / digest.removeprefix("sha256:")
        reply = Reply(body=file.read_bytes()) if file.exists() else Reply(404)
        return self.change_reply(request, reply)


@pytest.fixture
async def faulty_registry(harness: ImagesHarness) -> AsyncIterator[tuple[FaultyRegistry, str]]:
    registry = FaultyRegistry(harness.layout(lower_layer(), UPPER))
    with run_server(registry) as server:
        yield registry, f"{server.host}/app"


async def test_a_registry_gives_the_same_image_as_its_layout(
    harness: ImagesHarness, faulty_registry: tuple[FaultyRegistry, str]
) -> None:
    registry, name = faulty_registry
    image = await harness.resolve(name)
    assert image == await harness.resolve(f"oci:{registry.layout}")
    assert await harness.resolve(f"{name}@{image.digest}") == image
    with pytest.raises(NotFoundError):
        await harness.resolve(f"{name}:other")
    with pytest.raises(NotFoundError):
        await harness.resolve(f"{name}@{sha256(b'')}")


@pytest.mark.parametrize(
    ("part", "bad_reply", "error"),
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
async def test_bad_registry_responses_are_rejected(
    harness: ImagesHarness,
    faulty_registry: tuple[FaultyRegistry, str],
    part: str,
    bad_reply: Reply,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandyard.engine.images.http_client.MAX_PAUSE_S", 0.01)
    registry, name = faulty_registry
    registry.change_reply = lambda request, reply: bad_reply if f"/{part}/" in request.path else reply
    with pytest.raises(error):
        await harness.resolve(name)
    assert not list((harness.folder / "layers").iterdir()) and not list((harness.folder / "spool").iterdir())


async def test_a_registry_that_accepts_no_token_is_not_asked_forever(
    harness: ImagesHarness, faulty_registry: tuple[FaultyRegistry, str]
) -> None:
    registry, name = faulty_registry
    host, tokens, refused = name.partition("/")[0], itertools.count(), list[str]()

    def refuse(request: ReceivedRequest, _: Reply) -> Reply:
        if request.path.startswith("/tokens?"):
            return Reply(body=json.dumps({"token": str(next(tokens))}).encode())
        refused.append(request.path)
        return Reply(401, headers={"WWW-Authenticate": f'Bearer realm="http://{host}/tokens"'})

    registry.change_reply = refuse
    async with asyncio.timeout(30):
        with pytest.raises(ForbiddenError):
            await harness.resolve(name)
    assert len(refused) == 3


async def test_layers_are_checked_against_their_digest_and_broken_downloads_are_retried(
    harness: ImagesHarness, faulty_registry: tuple[FaultyRegistry, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.images.http_client.MAX_PAUSE_S", 0.01)
    registry, name = faulty_registry
    cuts = []

    def replace_layer(request: ReceivedRequest, reply: Reply) -> Reply:
        return Reply(body=bytes(len(reply.body))) if reply.body.startswith(b"\x1f\x8b") else reply

    def cut_layer(request: ReceivedRequest, reply: Reply) -> Reply:
        if reply.body.startswith(b"\x1f\x8b") and len(cuts) < 2:
            cuts.append(request)
            return Reply(body=reply.body, cut=100)
        return reply

    registry.change_reply = replace_layer
    with pytest.raises(InvalidInputError, match="digest and size"):
        await harness.resolve(name)
    registry.change_reply = cut_layer
    await harness.resolve(name)
    assert len(cuts) == 2
