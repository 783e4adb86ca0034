"""`sandyard ca`: show the certificate authority of an engine and how to trust it."""

from __future__ import annotations

from pathlib import Path

import click

from sandyard.cli.output import echo
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.errors import ConflictError

TRUST_INSTRUCTIONS = """\
{certificate}
is the certificate authority of this engine for {domain}. It can only issue certificates for names below {domain} and
localhost and for this machine's addresses. Machines that use the engine must trust it:

  Debian, Ubuntu   sudo cp {certificate} /usr/local/share/ca-certificates/{name}.crt
                   sudo update-ca-certificates
  Fedora, RHEL     sudo cp {certificate} /etc/pki/ca-trust/source/anchors/{name}.crt
                   sudo update-ca-trust
  macOS            sudo security add-trusted-cert -d -r trustRoot -k /Library/Keychains/System.keychain {certificate}
  Node             export NODE_EXTRA_CA_CERTS={certificate}
  one shell        export SSL_CERT_FILE={certificate}   (replaces all other authorities)
  Chrome on Linux  certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n {name} -i {certificate}
  Firefox          Settings, Certificates, Authorities, Import

The E2B SDK for Python and curl use SSL_CERT_FILE, or else the system's certificate store. Node has its own list and needs its variable.
The private key next to it belongs to the engine only: copy ca.pem to other machines, never key.pem.
"""


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of the engine or of `sandyard up`.",
)
@click.option("--domain", help="The engine's --domain.  [default: the domain that has an authority, or localhost]")
@click.option("--pem", is_flag=True, help="Print only the certificate.")
def ca(data_dir: Path | None, domain: str | None, pem: bool) -> None:
    """Show the engine's certificate authority and how to trust it. Creates it if it does not exist."""
    from sandyard.engine.certificates import server_certificates  # noqa: PLC0415 - keeps --help fast

    settings = EngineSettings.load(data_dir=data_dir, domain=domain)
    data = DataDir(settings.data_dir)
    engine_folder = data.path / "engine"
    if engine_folder.is_dir() and not data.database.exists():  # data directory of `sandyard up`
        data = DataDir(engine_folder)
    data.prepare()
    name = server_certificates.strip_port(settings.domain) if settings.domain is not None else _find_domain(data.tls)
    authority = server_certificates.load_authority(data.tls, name)
    if pem:
        echo(authority.pem.decode(), nl=False)
        return
    echo(TRUST_INSTRUCTIONS.format(certificate=authority.certificate, domain=name, name=f"sandyard-{name}"), nl=False)


def _find_domain(folder: Path) -> str:
    """Return the domain whose authority is in the folder. Raises ConflictError if there are several."""
    from sandyard.engine.certificates import server_certificates  # noqa: PLC0415 - keeps --help fast

    domains = server_certificates.list_authority_domains(folder)
    if len(domains) > 1:
        raise ConflictError(
            f"The engine has certificate authorities for several domains. Choose one with --domain: {', '.join(domains)}."
        )
    return domains[0] if domains else server_certificates.LOCAL
