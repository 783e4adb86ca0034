"""Test templates from images with the unmodified SDK: from a real registry with a password, an OCI layout, and archives."""

from __future__ import annotations

import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import BuildException, Template

from tests.conformance import tiny
from tests.harness.engine import Engine
from tests.images import registry as registries
from tests.images.image_files import Layout, entry, folder, rootfs, tar
from tests.images.registry import PASSWORD, USER, RealRegistry

from .conftest import NewSandbox

SETTINGS = {"Env": ["PATH=/opt/tools:/bin", "FLAVOUR=plain and simple"], "User": "node", "WorkingDir": "/srv"}


@pytest.fixture(scope="module")
def layout(engine: Engine) -> Layout:
    """An OCI layout with two images: busybox, without bash and sudo and with another user of id 1000, and one with Debian's programs."""
    created = Layout(engine.layouts / "oci")
    tools = (
        folder("opt"),
        folder("opt/tools"),
        entry("opt/tools/hello", "#!/bin/sh\necho hello from the image\n", mode=0o755),
    )
    deletion_layer = tar(entry("srv/.wh.gone"))
    layers = [
        rootfs(*tools, folder("srv", uid=1000, gid=1000), entry("srv/gone"), entry("srv/kept", "kept")),
        deletion_layer,
    ]
    other = {**created.add_image(layers, architecture="sparc"), "platform": {"os": "linux", "architecture": "sparc"}}
    created.tag(created.add_index([other, created.add_image(layers, SETTINGS)]), "busybox")
    tree = engine.layouts / "debian"
    tiny.build(tree)
    archive = engine.layouts / "debian.tar"
    with tarfile.open(archive, "w") as file:
        file.add(tree, ".")
    created.tag(created.add_image([archive.read_bytes()]), "debian")
    return created


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    with registries.with_password(tmp_path_factory.mktemp("registry") / "it") as running:
        yield running


@pytest.fixture
def name(api: httpx.Client) -> Any:
    template_name = f"image-{uuid.uuid4().hex[:12]}"
    yield template_name
    api.delete(f"/templates/{template_name}")


def build(template: Any, name: str) -> list[str]:
    logs: list[str] = []
    Template.build(template, name, cpu_count=1, memory_mb=256, on_build_logs=lambda entry: logs.append(entry.message))
    return logs


def test_image_from_a_registry_with_a_password(
    layout: Layout, registry: RealRegistry, name: str, new_sandbox: NewSandbox
) -> None:
    image = registry.push(f"oci:{layout.path}:busybox", "team/app:1")
    template = Template().from_image(image, username=USER, password=PASSWORD).run_cmd("hello > greeting; id -un")
    logs = build(template, name)
    assert any("Layer 1 of 2" in line for line in logs), logs
    assert PASSWORD not in "".join(logs)
    sandbox = new_sandbox(name)
    assert sandbox.commands.run("cat greeting").stdout == "hello from the image\n"
    assert sandbox.commands.run("hello; echo $FLAVOUR; id -un; ls /srv").stdout.splitlines() == [
        "hello from the image",
        "plain and simple",
        "user",
        "kept",
    ]
    assert sandbox.commands.run("id -u; stat -c %U /srv", user="root").stdout.split() == ["0", "node"]
    sandbox.files.write("note.txt", "written")
    assert sandbox.commands.run("cat ~/note.txt").stdout == "written"


def test_wrong_credentials_and_names_fail_the_build_with_an_explanation(
    registry: RealRegistry, layout: Layout, name: str
) -> None:
    image = registry.push(f"oci:{layout.path}:busybox", "team/private:1")
    with pytest.raises(BuildException, match="rejected these credentials"):
        build(Template().from_image(image, username=USER, password="wrong"), name)
    with pytest.raises(BuildException, match="credentials"):
        build(Template().from_image(image), name)
    with pytest.raises(BuildException, match="team/private:2 not found"):
        build(Template().from_image(f"{registry.host}/team/private:2", username=USER, password=PASSWORD), name)
    with pytest.raises(BuildException, match="IMAGES_REGISTRIES"):
        build(Template().from_image("localhost:1/x"), name)
    with pytest.raises(BuildException, match="configured for images"):
        build(Template().from_image("oci:/etc"), name)


@pytest.mark.parametrize("transport", ["oci", "oci-archive", "docker-archive"])
def test_image_from_the_local_machine(
    layout: Layout, engine: Engine, name: str, new_sandbox: NewSandbox, transport: str
) -> None:
    image = f"oci:{layout.path}:debian"
    if transport != "oci":
        image = f"{transport}:{engine.layouts}/{transport}.tar:debian:1"
        subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout.path}:debian", image], check=True)
    build(Template().from_image(image).run_cmd("uname > /made", user="root"), name)
    assert new_sandbox(name).commands.run("cat /made; whoami || id -u").stdout.split() == ["Linux", "1000"]
