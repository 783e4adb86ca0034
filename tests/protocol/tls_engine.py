"""An engine with TLS and its own domain."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.harness.engine import Engine

from .name_server import NameServer

DOMAIN = "sandyard.test"


@dataclass
class TlsEngine:
    """An engine with TLS at `address`, and a name server for its domain."""

    engine: Engine
    address: str
    name_server: NameServer
    domain: str = DOMAIN

    @property
    def authority(self) -> Path:
        return self.engine.data / "tls" / self.domain.partition(":")[0] / "ca.pem"

    def environment(self) -> dict[str, str]:
        """Return the variables that a user sets, and the authority to trust, which is not needed with a public certificate."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SSL_CERT_"))}
        return inherited | {
            "E2B_DOMAIN": self.domain,
            "E2B_API_KEY": self.engine.key,
            "SSL_CERT_FILE": str(self.authority),
            "NODE_EXTRA_CA_CERTS": str(self.authority),
            "CURL_CA_BUNDLE": str(self.authority),
        }

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Run a program that resolves the server's name, and return its output."""
        result = subprocess.run(
            self.name_server.wrap_command(*command),
            cwd=cwd,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def connect(self, name: str) -> ssl.SSLSocket:
        """Open a verified TLS connection to the server under this name."""
        context = ssl.create_default_context(cafile=str(self.authority))
        return context.wrap_socket(socket.create_connection((self.address, 443), timeout=10), server_hostname=name)


def random_loopback_address() -> str:
    """Return a random loopback address, so that ports 53 and 443 are free there."""
    return f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}.{secrets.randbelow(250) + 1}"
