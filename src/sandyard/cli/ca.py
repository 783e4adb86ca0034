"""`sandyard ca`: the certificate authority an engine's own TLS certificates come from, and how programs come to trust it."""

from __future__ import annotations

from pathlib import Path

import click

from sandyard.cli.output import echo
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.errors import ConflictError

TRUST = """\
{certificate}
is the certificate authority of this engine for {domain}. It can vouch for names below {domain} and localhost and for
this machine's own addresses, and for nothing else. Machines that use the engine have to trust it:

  Debian, Ubuntu   sudo cp {certificate} /usr/local/share/ca-certificates/{name}.crt
                   sudo update-ca-certificates
  Fedora, RHEL     sudo cp {certificate} /etc/pki/ca-trust/source/anchors/{name}.crt
                   sudo update-ca-trust
  macOS            sudo security add-trusted-cert -d -r trustRoot -k /Library/Keychains/System.keychain {certificate}
  Node             export NODE_EXTRA_CA_CERTS={certificate}
  one shell        export SSL_CERT_FILE={certificate}   (and no other authority)
  Chrome on Linux  certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n {name} -i {certificate}
  Firefox          Settings, Certificates, Authorities, Import

The E2B SDK for Python and curl follow SSL_CERT_FILE, else the system's store. Node has its own list and needs its variable.
The key beside it is the engine's alone: copy ca.pem to other machines, never key.pem.
"""


@click.command()
@click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="The data directory of the engine or of `up`."
)
@click.option("--domain", help="The engine's --domain.  [default: the one it has an authority for, else localhost]")
@click.option("--pem", is_flag=True, help="Print the certificate itself, and nothing else.")
def ca(data_dir: Path | None, domain: str | None, pem: bool) -> None:
    """Show the engine's own certificate authority, and how to trust it. It is made if there is none yet."""
    from sandyard.engine.certificates import serving  # noqa: PLC0415 - what --help need not wait for

    settings = EngineSettings.load(data_dir=data_dir, domain=domain)
    data = DataDir(settings.data_dir)
    inside = data.path / "engine"
    if inside.is_dir() and not data.database.exists():  # of `sandyard up`
        data = DataDir(inside)
    data.prepare()
    name = serving.bare(settings.domain) if settings.domain is not None else _find_domain(data.tls)
    authority = serving.authority(data.tls, name)
    if pem:
        echo(authority.pem.decode(), nl=False)
        return
    echo(TRUST.format(certificate=authority.certificate, domain=name, name=f"sandyard-{name}"), nl=False)


def _find_domain(folder: Path) -> str:
    """Return the domain whose authority is in the folder. Raises ConflictError where there are several."""
    from sandyard.engine.certificates import serving  # noqa: PLC0415 - what --help need not wait for

    found = serving.domains_with_authority(folder)
    if len(found) > 1:
        raise ConflictError(
            f"The engine has certificate authorities for several domains. Choose one with --domain: {', '.join(found)}."
        )
    return found[0] if found else serving.LOCAL
