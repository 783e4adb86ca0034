"""Install the engine's egress authority in sandboxes whose network policy has rules.

The engine intercepts requests to a rule's host and presents a certificate of its own authority, so programs in the
sandbox have to trust it for that host. Sandboxes without rules do not get it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sandyard.engine.sandboxes.agent import Agent, send_identity
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.model import Network, Sandbox
from sandyard.kit.errors import SandyardError, UnreachableError

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
ANCHOR = "/usr/local/share/ca-certificates/sandyard-egress.crt"
VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
    *("NODE_EXTRA_CA_CERTS", "DENO_CERT"),
)
"""Variables that point programs with their own authorities to the system's."""
INSTALL_TIMEOUT_S = 20.0

_OTHER_BUNDLES = "/etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem /etc/ssl/ca-bundle.pem"
_INSTALL = f"""
set -e
bundle={BUNDLE} anchor={ANCHOR}
if [ ! -f "$bundle" ]; then  # other systems have it elsewhere, and the variables name this one
  mkdir -p "${{bundle%/*}}"
  for other in {_OTHER_BUNDLES}; do [ ! -f "$other" ] || {{ cat "$other" > "$bundle"; break; }}; done
  [ -f "$bundle" ] || : > "$bundle"
fi
mark=$(sed -n 2p "$anchor")
for file in "$bundle" {_OTHER_BUNDLES}; do
  [ -f "$file" ] || continue
  grep -qF -- "$mark" "$file" || {{ echo; cat "$anchor"; }} >> "$file"
done
if hash=$(openssl x509 -hash -noout -in "$anchor" 2>/dev/null); then
  ln -sf "$anchor" "/etc/ssl/certs/$hash.0"
fi
mkdir -p /etc/profile.d
for name in {" ".join(VARIABLES)}; do echo "export $name=\\"\\${{$name:-$bundle}}\\""; done > /etc/profile.d/sandyard-egress.sh
"""


class EgressTrust:
    """Installs the authority in sandboxes. `pem` is its certificate; without it nothing is installed."""

    def __init__(self, calls: DriverCalls, pem: bytes) -> None:
        self._calls = calls
        self._pem = pem

    def make_env(self, record: Sandbox) -> Mapping[str, str]:
        """Return the sandbox's environment variables; its own take precedence."""
        if not record.network.policy.rules:
            return record.env
        return {**dict.fromkeys(VARIABLES, BUNDLE), **record.env}

    async def install(self, record: Sandbox) -> None:
        """Install the authority in a running sandbox if its policy has rules. Idempotent. Raises UnreachableError if it
        fails."""
        if not record.network.policy.rules or not self._pem:
            return
        agent = Agent(self._calls, record.handle)
        output = bytearray()
        try:
            await agent.write(ANCHOR, self._pem, user="root")
            code = await agent.run(
                _INSTALL,
                user="root",
                cwd="/",
                timeout_s=INSTALL_TIMEOUT_S,
                output=lambda _, data: output.extend(data[: 500 - len(output)]),
            )
        except TimeoutError:
            raise UnreachableError(_make_error_message(f"it took more than {INSTALL_TIMEOUT_S:g} s")) from None
        except SandyardError as error:
            raise UnreachableError(_make_error_message(error.message)) from error
        if code != 0:
            raise UnreachableError(
                _make_error_message(output[:500].decode(errors="replace").strip() or f"exit code {code}")
            )

    async def prepare_network(self, record: Sandbox, network: Network) -> None:
        """Install the authority in a running sandbox that is about to get this network, if its policy needs it. Running
        processes keep their variables."""
        if not network.policy.rules or record.network.policy.rules:
            return
        changed = replace(record, network=network)
        await self.install(changed)
        await send_identity(self._calls, record.handle, record.template_id, self.make_env(changed), record.defaults)


def _make_error_message(reason: str) -> str:
    return f"Could not install the certificate that network rules need in the sandbox: {reason}"
