"""`sandyard engine`: serve sandboxes until told to stop."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandyard import __version__
from sandyard.cli.output import echo
from sandyard.cli.up import lifeline
from sandyard.engine.settings import EngineSettings

if TYPE_CHECKING:
    from sandyard.engine.app import Ready


@click.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one.  [default: 3000]")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="What outlives a restart lies here.")
@click.option(
    "--templates-dir", type=click.Path(file_okay=False, path_type=Path), help="Templates, for all engines of a machine."
)
@click.option("--api-key", "api_keys", multiple=True, help="Accept this key, besides the stored ones. Repeatable.")
@click.option("--driver", type=click.Choice(["auto", "namespace", "fake"]), help="Where sandboxes run.")
@click.option("--domain", help="Previews are reachable at {port}-{sandbox}.DOMAIN, the API at api.DOMAIN.")
@click.option("--tls-port", type=click.IntRange(0, 65535), help="HTTPS too, at this port; 0 picks a free one.")
@click.option("--tls-host", help="Address to listen on for HTTPS.  [default: --host]")
@click.option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Certificate with its chain, read again when it changes.  [default: one of the engine's own: `sandyard ca`]",
)
@click.option(
    "--tls-key", type=click.Path(dir_okay=False, path_type=Path), help="Its key.  [default: in the same file]"
)
@click.option(
    "--redirect-port",
    type=click.IntRange(0, 65535),
    help="Redirect plain HTTP on this port to HTTPS; 0: don't.  [default: 80, if --tls-port is 443]",
)
@click.option("--max-sandboxes", type=click.IntRange(1), help="How many may run at the same time.")
@click.option("--pool-size", type=click.IntRange(0), help="Sandboxes kept ready per template; 0 keeps none.")
@click.option(
    "--lan", type=click.Choice(["deny", "allow"]), help="May sandboxes reach private networks?  [default: deny]"
)
@click.option(
    "--carry-host-trust/--no-host-trust",
    default=None,
    help="Give sandboxes this machine's certificate authorities and package settings.  [default: carry]",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--log-json", is_flag=True, default=None, help="Log one JSON object a line.")
@click.option("--access-log", is_flag=True, help="Log every request.")
def engine(access_log: bool, api_keys: tuple[str, ...], **options: Any) -> None:
    """Serve sandboxes to E2B clients: point E2B_API_URL, E2B_SANDBOX_URL and E2B_VOLUME_API_URL here.

    Every option, and more, can be set as SANDYARD_<NAME>; options win. SIGTERM stops the engine and leaves its
    sandboxes running: the next engine with the same data directory goes on with them.
    """
    lifeline.hold()
    settings = EngineSettings.load(api_keys=api_keys or None, **options)
    from sandyard.engine.app import run  # noqa: PLC0415 - a quarter of a second that a wrong option need not wait for

    run(settings, lambda ready: announce(ready, settings), access_log=access_log)


def announce(ready: Ready, settings: EngineSettings) -> None:
    """Say where it is and how to use it."""
    keys = f"sandyard keys --data-dir {shlex.quote(str(settings.data_dir))}"
    lines = [f"Sandyard engine {__version__} listens on {ready.url} (driver: {ready.driver}). To use it:"]
    lines += [f"  export E2B_{name}_URL={ready.url}" for name in ("API", "SANDBOX", "VOLUME_API")]
    if ready.new_key is not None:
        lines.append(f"  export E2B_API_KEY={ready.new_key.reveal()}")
        lines.append(f"This key was made just now and is not shown again; `{keys} create LABEL` makes more.")
    elif settings.api_keys:
        lines.append("  export E2B_API_KEY=…   (the key given with --api-key)")
    else:
        lines.append(f"  export E2B_API_KEY=…   (`{keys} list` shows which there are)")
    if ready.secure_domain is not None:
        lines.append(f"Over TLS, where api.{ready.secure_domain.partition(':')[0]} and the names beside it lead here:")
        lines.append(f"  export E2B_DOMAIN={ready.secure_domain}   (with the key, and without the three addresses)")
    if ready.redirect_port is not None:
        lines.append(f"Plain HTTP on port {ready.redirect_port} is redirected to HTTPS.")
    if ready.authority is not None:
        command = f"sandyard ca --data-dir {shlex.quote(str(settings.data_dir))} --domain {ready.authority.parent.name}"
        lines.append(f"Its certificates come from {ready.authority}: `{command}` says how to trust it.")
    echo("\n".join(lines))
    if ready.exposed:
        echo(
            f"Warning: {settings.host} is reachable from other machines, and keys cross the network unencrypted. "
            "Listen on 127.0.0.1, with --tls-port and --tls-host for others, or with a proxy in front.",
            err=True,
        )
