"""`sandyard engine`: serve sandboxes until stopped."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandyard import __version__
from sandyard.cli.output import try_echo
from sandyard.cli.up import lifeline
from sandyard.engine.settings import EngineSettings

if TYPE_CHECKING:
    from sandyard.engine.app import Ready


@click.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 selects a free port.  [default: 3000]"
)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Directory for persistent data.")
@click.option(
    "--database-url",
    help="PostgreSQL for the records, so that another engine can stand by. With a password, set SANDYARD_ENGINE_DATABASE_URL instead.  "
    "[default: SQLite in --data-dir]",
)
@click.option(
    "--templates-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for templates, shared by all engines on this machine.",
)
@click.option(
    "--api-key", "api_keys", multiple=True, help="Accept this key in addition to the stored ones. Repeatable."
)
@click.option("--driver", type=click.Choice(["auto", "namespace", "fake"]), help="Sandbox driver.")
@click.option("--domain", help="Serve previews at {port}-{sandbox}.DOMAIN and the API at api.DOMAIN.")
@click.option("--tls-port", type=click.IntRange(0, 65535), help="Also serve HTTPS on this port; 0 selects a free port.")
@click.option("--tls-host", help="Address to listen on for HTTPS.  [default: --host]")
@click.option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Certificate chain, reloaded when the file changes.  [default: issued by the engine's own authority, see `sandyard ca`]",
)
@click.option(
    "--tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Private key of --tls-cert.  [default: in the same file]",
)
@click.option(
    "--redirect-port",
    type=click.IntRange(0, 65535),
    help="Redirect HTTP on this port to HTTPS; 0 disables this.  [default: 80 if --tls-port is 443]",
)
@click.option("--max-sandboxes", type=click.IntRange(1), help="Maximum number of running sandboxes.")
@click.option(
    "--pool-size", type=click.IntRange(0), help="Number of sandboxes kept ready per template; 0 disables the pool."
)
@click.option(
    "--min-isolation",
    type=click.Choice(["namespace", "gvisor"]),
    help="The weakest isolation that sandboxes may have.  [default: namespace]",
)
@click.option(
    "--lan",
    type=click.Choice(["deny", "allow"]),
    help="Whether sandboxes may connect to private networks.  [default: deny]",
)
@click.option(
    "--carry-host-trust/--no-host-trust",
    default=None,
    help="Give sandboxes this machine's certificate authorities and package settings.  [default: carry]",
)
@click.option(
    "--layer-store",
    metavar="LOCATION",
    help="Also keep snapshots in this directory (absolute path) or at s3://bucket/prefix.",
)
@click.option("--join-address", help="Address by which other machines reach this one, to join as hosts.")
@click.option(
    "--join-port",
    type=click.IntRange(0, 65535),
    help="Port at which they join; 0 selects a free port.  [default: 3010]",
)
@click.option("--join-host", help="Address to listen on for machines that join.  [default: --join-address]")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Log level.  [default: info]"
)
@click.option("--log-json", is_flag=True, default=None, help="Log one JSON object per line.")
@click.option("--access-log", is_flag=True, help="Log every request.")
def engine(access_log: bool, api_keys: tuple[str, ...], **options: Any) -> None:
    """Serve sandboxes to E2B clients. Set E2B_API_URL, E2B_SANDBOX_URL and E2B_VOLUME_API_URL to this address.

    Every option, and more settings, can be set as SANDYARD_<NAME>; options take precedence. SIGTERM stops the engine and leaves its
    sandboxes running: the next engine with the same data directory continues with them.
    """
    lifeline.watch_supervisor()
    settings = EngineSettings.load(api_keys=api_keys or None, **options)
    from sandyard.engine.app import run  # noqa: PLC0415 - slow to load, and not needed to report a wrong option

    run(settings, lambda ready: announce(ready, settings), access_log=access_log, on_standby=report_standby)


def report_standby(reason: str) -> None:
    """Print why this engine waits. `sandyard up` reads it."""
    try_echo(f"{lifeline.STANDBY} {reason}")


def announce(ready: Ready, settings: EngineSettings) -> None:
    """Print the engine's address and how to use it."""
    keys = f"sandyard keys --data-dir {shlex.quote(str(settings.data_dir))}"
    lines = [f"Sandyard engine {__version__} is listening on {ready.url} (driver: {ready.driver}). To use it:"]
    lines += [f"  export E2B_{name}_URL={ready.url}" for name in ("API", "SANDBOX", "VOLUME_API")]
    if ready.new_key is not None:
        lines.append(f"  export E2B_API_KEY={ready.new_key.reveal()}")
        lines.append(f"Save this new key: it is not shown again. To create more: `{keys} create LABEL`.")
    elif settings.api_keys:
        lines.append("  export E2B_API_KEY=…   (the key from --api-key)")
    else:
        lines.append(f"  export E2B_API_KEY=…   (list keys with `{keys} list`)")
    if ready.secure_domain is not None:
        lines.append(
            f"Over TLS, if DNS for api.{ready.secure_domain.partition(':')[0]} and its sibling names points here:"
        )
        lines.append(f"  export E2B_DOMAIN={ready.secure_domain}   (with the key, instead of the three URLs)")
    if ready.redirect_port is not None:
        lines.append(f"HTTP on port {ready.redirect_port} redirects to HTTPS.")
    if ready.authority is not None:
        command = f"sandyard ca --data-dir {shlex.quote(str(settings.data_dir))} --domain {ready.authority.parent.name}"
        lines.append(f"Its certificates are issued by {ready.authority}. To see how to trust it: `{command}`.")
    if ready.join_address is not None:
        lines.append(f"Machines join as hosts at {ready.join_address}. To add one: `sandyard host token`.")
    try_echo("\n".join(lines))
    if ready.exposed:
        try_echo(
            f"Warning: {settings.host} is reachable from other machines, and keys are sent unencrypted. "
            "Listen on 127.0.0.1 and use --tls-port and --tls-host for other machines, or put a TLS proxy in front.",
            err=True,
        )
