"""An image becomes a working sandbox: with its users, without the files that a layer deletes, and able to run commands without bash."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sandyard.engine.images.service import Images, Options
from tests.conformance.harness import DriverHarness
from tests.images.image_files import Layout, entry, folder, link, read_busybox, rootfs, tar

NET_RAW = struct.pack("<IIIII", 0x0200_0001, 1 << 13, 0, 0, 0).decode("utf-8", "surrogateescape")
LOWER = (
    folder("data", 0o750, uid=1000, gid=1000),
    entry("data/old", "old"),
    entry("data/kept", "kept"),
    folder("tree"),
    entry("tree/hidden", "hidden"),
    folder("gone"),
    entry("gone/file", "gone"),
    entry("bin/own", "#!/bin/sh\necho it runs\n", mode=0o755),
    entry("opt/busybox", read_busybox(), mode=0o755, pax_headers={"SCHILY.xattr.security.capability": NET_RAW}),
    link("etc/resolv.conf", "/nowhere/at/all"),
    link("proc", "/etc"),
)
UPPER = tar(
    entry("data/.wh.old"),
    entry("data/new", "new"),
    entry("tree/.wh..wh..opq"),
    entry("tree/shown", "shown"),
    entry(".wh.gone"),
)


async def test_a_sandbox_runs_from_an_image(harness: DriverHarness, tmp_path: Path) -> None:
    if not harness.real:
        pytest.skip("the fake driver has no root file systems")
    layout = Layout(tmp_path / "oci")
    layout.tag(layout.add_image([rootfs(*LOWER), UPPER], {"Env": ["PATH=/bin"], "User": "node"}))
    images = Images(harness.images_dir, Options(dirs=(tmp_path,), reserve_bytes=0))
    images.prepare()
    image = await images.resolve(f"oci:{layout.path}", None, lambda _: None)
    assert image.user == "node"

    handle, agent = await harness.create(layers=image.layers)
    try:
        shown = await agent.run("cat /data/kept /data/new /tree/shown; ls /tree; ls /data; ls -d /gone; own")
        assert shown.out.split() == ["keptnewshownshown", "kept", "new", "it", "runs"], shown
        assert (await agent.run("cat /etc/resolv.conf && ls -d /proc/1")).code == 0
        for user in ("root", "user"):
            who = await agent.run(
                "echo $USER; echo $HOME; cd && touch here /tmp/$USER /var/tmp/$USER && echo written", user=user
            )
            assert who.out.split() == [user, "/root" if user == "root" else "/home/user", "written"], who
        if harness.kind not in {"namespace-rootless", "gvisor"}:  # gVisor ignores file capabilities
            capable = await agent.run("/opt/busybox grep CapEff: /proc/self/status", user="user")
            assert capable.out.split() == ["CapEff:", f"{1 << 13:016x}"]
        if harness.kind != "namespace-rootless":
            owners = await agent.run("stat -c '%u %g %a' /data /data/kept /home/user")
            assert owners.out.splitlines() == ["1000 1000 750", "0 0 644", "1001 1001 755"]
        assert (await agent.run("rm -r /data /tree && mkdir /tree && ls /tree")).code == 0
    finally:
        await harness.driver.kill(handle)
