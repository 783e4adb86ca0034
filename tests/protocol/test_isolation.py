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


with_both_levels = pytest.mark.not_in_gvisor("the test uses both isolation levels")


@with_both_levels
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


@with_both_levels
@pytest.mark.usefixtures("gvisor")
def test_forks_continue_the_processes_of_the_sandbox(new_sandbox: NewSandbox, api: httpx.Client) -> None:
    sandbox = new_sandbox(metadata={KEY: "gvisor"})
    server = "python3 -m http.server 8000 --bind 127.0.0.1"
    sandbox.commands.run(f"mkdir site; echo first > site/page; cd site && {server}", background=True)
    shell = sandbox.commands.run("while read line; do eval $line; done", background=True, stdin=True)
    sandbox.commands.send_stdin(shell.pid, "secret=in-memory\n")
    fetch = "curl -sS --retry 20 --retry-connrefused http://127.0.0.1:8000/page"
    assert sandbox.commands.run(fetch).stdout == "first\n"
    forks = sandbox.fork(timeout=60, count=2)
    try:
        for fork in forks:
            assert isinstance(fork, Sandbox), fork
            assert fork.commands.run(fetch).stdout == "first\n", "the server runs on in the fork"
            fork.commands.send_stdin(shell.pid, "echo $secret > secret\n")
            assert fork.commands.run("until [ -s secret ]; do sleep 0.1; done; cat secret").stdout == "in-memory\n"
            assert fork.commands.run("echo $E2B_SANDBOX_ID").stdout == f"{fork.sandbox_id}\n"
        assert sandbox.commands.run("ls secret || true").stdout == "", "the original has its own files"
        assert sandbox.commands.run(fetch).stdout == "first\n"
    finally:
        for fork in forks:
            if isinstance(fork, Sandbox):
                fork.kill()
    weak = new_sandbox(metadata={KEY: "namespace"})
    refused = api.post(f"/sandboxes/{weak.sandbox_id}/fork", json={"memory": True})
    assert refused.status_code == 501 and "Use gvisor" in refused.json()["message"]


def test_a_level_that_does_not_exist_is_refused(new_sandbox: NewSandbox) -> None:
    with pytest.raises(SandboxException, match=r"'kvm', which is not an isolation level. Use namespace or gvisor"):
        new_sandbox(metadata={KEY: "kvm"})
