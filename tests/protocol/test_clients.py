"""Test unmodified third-party clients of E2B: each runs its main operations with a sandbox."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.harness.engine import Engine
from tests.protocol.tls_engine import TlsEngine

from .clients import environments
from .clients.table import TARGET, Client, read_clients, write_document

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for port 443, a name server and a mount namespace"),
]
WRITE = "SANDYARD_CLIENTS_DOCUMENT"
CLIENTS = read_clients()
RUN_SECONDS = 300
working: list[Client] = []


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.slug)
def test_client(tls_engine: TlsEngine, client: Client) -> None:
    folder = environments.prepare(client)
    command, variables = environments.command(client, folder, tls_engine.environment())
    result = subprocess.run(
        tls_engine.name_server.wrap_command(*command),
        env={**variables, "PYTHONDONTWRITEBYTECODE": "1", "OTEL_SDK_DISABLED": "true"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    working.append(client)


ONLY_ADDRESSES = """
from e2b import Sandbox
sandbox = Sandbox.create()
print(sandbox.commands.run("echo on").stdout.strip())
sandbox.kill()
"""


@pytest.mark.parametrize(("release", "works"), [("2.6.4", False), ("2.7.0", True)])
def test_only_sdks_before_2_7_need_a_domain(engine: Engine, release: str, works: bool) -> None:
    """The engine has no domain: the SDK gets addresses, and host names of sandboxes do not resolve."""
    folder = environments.prepare(Client(f"SDK {release}", "", (f"e2b=={release}",)))
    result = subprocess.run(
        [str(folder / "bin/python"), "-P", "-c", ONLY_ADDRESSES],
        env={**os.environ, **engine.environment},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert (result.returncode == 0, result.stdout) == (works, "on\n" if works else ""), result.stderr[-2000:]
    needs_domain = Client("SDK", "", (f"e2b=={release}",)).needs_domain
    assert needs_domain is not works


def test_the_document_lists_the_clients_that_work() -> None:
    if len(working) < len(CLIENTS):
        pytest.skip("not all clients were tested, or some failed")
    document = write_document(working)
    if os.environ.get(WRITE):
        TARGET.write_text(document)
    assert TARGET.read_text() == document, "run `make clients` to regenerate the document"
