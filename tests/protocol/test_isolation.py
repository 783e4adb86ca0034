"""Isolation levels, selected with metadata, which every client can send."""

from __future__ import annotations

import httpx
import pytest
from e2b import Sandbox, SandboxException

from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.kit.errors import UnsupportedError
from tests.protocol.conftest import NewSandbox

KEY = "sandyard.isolation"


@pytest.fixture
def gvisor() -> None:
    try:
        Runsc.find()
    except UnsupportedError as error:
        pytest.skip(error.message)


def get_isolation(api: httpx.Client, sandbox: Sandbox) -> str:
    return str(api.get(f"/sandboxes/{sandbox.sandbox_id}").json()["isolation"])


@pytest.mark.usefixtures("gvisor")
def test_a_sandbox_its_snapshots_and_its_forks_run_on_their_own_kernel(
    new_sandbox: NewSandbox, api: httpx.Client
) -> None:
    host_kernel = new_sandbox(metadata={KEY: "namespace"}).commands.run("uname -r").stdout
    sandbox = new_sandbox(metadata={KEY: "gvisor"})
    assert get_isolation(api, sandbox) == "gvisor"
    assert sandbox.commands.run("uname -r").stdout != host_kernel
    assert sandbox.commands.run("sudo id -u; echo kept > kept").stdout == "0\n"
    sandbox.pause()
    sandbox.connect()
    snapshot = sandbox.create_snapshot()
    copy = new_sandbox(snapshot.snapshot_id)
    assert copy.files.read("kept") == "kept\n"
    assert get_isolation(api, copy) == "gvisor", (
        "a snapshot must not be isolated less than the sandbox it was taken from"
    )


def test_a_level_that_does_not_exist_is_refused(new_sandbox: NewSandbox) -> None:
    with pytest.raises(SandboxException, match=r"'kvm', which is not an isolation level. Use namespace or gvisor"):
        new_sandbox(metadata={KEY: "kvm"})
