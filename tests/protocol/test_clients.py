"""Programs of others that use E2B, unmodified: each does with a sandbox what it is for."""

from __future__ import annotations

import os
import subprocess

import pytest

from .clients import environments
from .clients.table import TARGET, Client, read_clients, write_document
from .engine import Engine
from .test_tls import Team, team

__all__ = ["team"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.geteuid() != 0, reason="port 443, a name server and a mount namespace are root's"),
]
WRITE = "SANDYARD_CLIENTS_DOCUMENT"
CLIENTS = read_clients()
RUN_SECONDS = 300
seen: list[Client] = []


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.slug)
def test_client(team: Team, client: Client) -> None:
    folder = environments.prepare(client)
    words, variables = environments.command(client, folder, team.environment())
    left = subprocess.run(
        team.names.seen_by(*words),
        env={**variables, "PYTHONDONTWRITEBYTECODE": "1", "OTEL_SDK_DISABLED": "true"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert left.returncode == 0, (left.stdout + left.stderr)[-6000:]
    seen.append(client)


ONLY_ADDRESSES = """
from e2b import Sandbox
sandbox = Sandbox.create()
print(sandbox.commands.run("echo on").stdout.strip())
sandbox.kill()
"""


@pytest.mark.parametrize(("release", "works"), [("2.6.4", False), ("2.7.0", True)])
def test_which_sdks_need_a_domain(engine: Engine, release: str, works: bool) -> None:
    """An engine without one: the SDK is told addresses. Names of sandboxes lead nowhere."""
    folder = environments.prepare(Client(f"SDK {release}", "", (f"e2b=={release}",)))
    done = subprocess.run(
        [str(folder / "bin/python"), "-P", "-c", ONLY_ADDRESSES],
        env={**os.environ, **engine.environment},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert (done.returncode == 0, done.stdout) == (works, "on\n" if works else ""), done.stderr[-2000:]
    older = Client("SDK", "", (f"e2b=={release}",)).needs_domain
    assert older is not works


def test_the_document_says_what_this_run_shows() -> None:
    if len(seen) < len(CLIENTS):
        pytest.skip("not all clients were tried, or not all work")
    shown = write_document(seen)
    if os.environ.get(WRITE):
        TARGET.write_text(shown)
    assert TARGET.read_text() == shown, "`make clients` writes it anew"
