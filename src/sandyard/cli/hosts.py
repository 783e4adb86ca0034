"""`sandyard host`: manage the machines that run sandboxes for an engine, and run the host service."""

from __future__ import annotations

import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

import click

from sandyard import __version__
from sandyard.cli import host_kubernetes, host_ray, host_service
from sandyard.cli.engine_api import EngineAddress, engine_options, open_client, request
from sandyard.cli.host_service import data_dir_option
from sandyard.cli.options import OrderedGroup
from sandyard.cli.output import (
    echo,
    format_age,
    output_option,
    pluralize,
    print_json,
    show_list,
    text_option,
    try_echo,
    wants_json,
)
from sandyard.cli.up.service_manager import notify_service_manager
from sandyard.kit.errors import ConflictError
from sandyard.kit.settings import get_default_data_dir

HOST_PORT = 3011
POLL_SECONDS = 1.0
_COLUMNS = {
    "HOST": "name",
    "STATE": "state",
    "SANDBOXES": "sandboxes",
    "FREE MEMORY": "memory",
    "FREE DISK": "disk",
    "VERSION": "version",
    "ADDRESS": "address",
    "SOURCE": "source",
    "LABELS": "labels",
    "LAST SEEN": "seenAt",
    "REASON": "reason",
}


driver_option = click.option("--driver", type=click.Choice(["auto", "namespace", "fake"]), help="Sandbox driver.")


@click.group(cls=OrderedGroup)
@engine_options
@click.pass_context
def host(context: click.Context, url: str | None, api_key: str) -> None:
    """Add machines that run sandboxes for the engine (hosts), and manage them.

    Run `token`, `list`, `label`, `drain`, `recover` and `forget` where you can reach the engine. Run `join`, `serve`,
    `install-service`, `uninstall-service` and `leave` on the host itself.
    """
    context.obj = EngineAddress.find(url, api_key)


@host.command("token")
@click.option(
    "--minutes", type=click.IntRange(1, 7 * 24 * 60), default=60, show_default=True, help="How long the token is valid."
)
@text_option
@click.pass_obj
def create_token(engine: EngineAddress, minutes: int, output: str) -> None:
    """Create a token that lets one machine join."""
    with open_client(engine) as client:
        created = request(client, "POST", "/hosts/tokens", json={"lifetime": minutes * 60.0})
    if output == "json":
        print_json(created)
        return
    echo(f"Install Sandyard on the new machine and run this there within {pluralize(minutes, 'minute')}:", err=True)
    echo(f"sandyard host join {created['token']}")


@host.command()
@click.argument("token")
@click.option("--name", help="Name of this host.  [default: the machine's name]")
@click.option(
    "--address",
    help="Address at which the engine can reach this machine.  [default: the one from which this machine connects]",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=HOST_PORT, show_default=True, help="Port of the host service."
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of this host. Repeatable.")
@data_dir_option
def join(
    token: str, *, name: str | None, address: str | None, port: int, labels: tuple[str, ...], data_dir: Path
) -> None:
    """Make this machine a host of the engine that created TOKEN.

    Nothing is sent before the engine has proved its identity. The private key never leaves this machine. With `-`, TOKEN is
    read from standard input: other users of the machine can see arguments, and could join with the token first.
    """
    from sandyard.engine.hosts import joining  # noqa: PLC0415 - slow to load
    from sandyard.engine.hosts.identity import HostIdentity  # noqa: PLC0415
    from sandyard.engine.hosts.join_token import JoinToken  # noqa: PLC0415

    name = name or socket.gethostname().partition(".")[0]
    joined = joining.join(
        JoinToken.parse(sys.stdin.readline() if token == "-" else token),  # noqa: S105 - it means standard input
        HostIdentity(data_dir),
        name=name,
        address=address,
        port=port,
        labels=_parse_labels(labels),
    )
    echo(f"This machine is now the host {joined.name} ({joined.id}) of the engine at {joined.engine}.")
    echo(f"Allow the engine to connect to port {joined.port} of this machine, and start the host service:")
    echo(f"  sandyard host serve{_format_data_dir(data_dir)}")


@host.command()
@click.option("--listen", default="0.0.0.0", show_default=True, help="Address to listen on for the engine.")  # noqa: S104
@driver_option
@click.option("--lan", type=click.Choice(["deny", "allow"]), help="Whether sandboxes may connect to private networks.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Log level.  [default: info]"
)
@click.option("--log-json", is_flag=True, default=None, help="Log one JSON object per line.")
@data_dir_option
def serve(listen: str, data_dir: Path, **options: Any) -> None:
    """Run sandboxes on this machine for its engine, until SIGTERM. Sandboxes keep running after that.

    Only that engine can connect: both sides identify themselves with certificates. For limits and network settings, use the
    same SANDYARD_<NAME> variables as for an engine.
    """
    from sandyard.engine.hosting import server  # noqa: PLC0415 - slow to load
    from sandyard.engine.hosting.settings import HostSettings  # noqa: PLC0415
    from sandyard.engine.hosts.identity import HostIdentity, HostServerTls  # noqa: PLC0415
    from sandyard.engine.hosts.joining import CertificateRenewal  # noqa: PLC0415
    from sandyard.engine.settings import EngineSettings  # noqa: PLC0415

    identity = HostIdentity(data_dir)
    joined = identity.get()
    machine = EngineSettings.load(data_dir=data_dir.absolute(), **options)
    settings = HostSettings(joined.id, listen, joined.port, HostServerTls(identity).context, machine)

    def announce(port: int) -> None:
        try_echo(
            f"Sandyard host {joined.name} {__version__} is waiting for the engine at {joined.engine} on port {port}."
        )
        notify_service_manager("READY=1")

    with CertificateRenewal(identity):
        server.run(settings, announce)


host.add_command(host_service.install_service)
host.add_command(host_service.uninstall_service)
host.add_command(host_ray.ray)
host.add_command(host_kubernetes.kubernetes)


@host.command()
@click.option("--force", is_flag=True, help="Leave even if sandboxes are lost or the engine does not respond.")
@driver_option
@data_dir_option
def leave(force: bool, driver: str | None, data_dir: Path) -> None:
    """Leave the engine, and delete the sandboxes that are still on this machine. Stop the host service first."""
    from sandyard.engine.hosting import server  # noqa: PLC0415 - slow to load
    from sandyard.engine.hosts import joining  # noqa: PLC0415
    from sandyard.engine.hosts.identity import HostIdentity  # noqa: PLC0415
    from sandyard.engine.settings import EngineSettings  # noqa: PLC0415

    identity = HostIdentity(data_dir)
    has_left = identity.find() is None and server.was_used(data_dir)  # but an earlier removal of the sandboxes failed
    if not has_left:
        identity.get()  # before the lock, which creates the directory
    with server.lock_data_dir(data_dir):
        if not has_left:
            left = joining.leave(identity, force=force)
            echo(f"This machine is no longer a host of the engine at {left.engine}.")
        server.remove_all_sandboxes(EngineSettings.load(data_dir=data_dir.absolute(), driver=driver))
    echo(f"Templates and volumes are still in {data_dir}. To remove them, delete it.")


@host.command("list")
@output_option
@click.pass_obj
def list_hosts(engine: EngineAddress, output: str | None) -> None:
    """List the hosts of the engine. The first one is the engine's own machine."""
    with open_client(engine) as client:
        page = request(client, "GET", "/hosts")
    if wants_json(output):
        print_json(page)
        return
    show_list({"items": [_make_row(shown) for shown in page["hosts"]]}, _COLUMNS, "table", empty_message="No hosts.")
    for source in page.get("sources", []):
        for problem in _list_problems(source):
            echo(problem, err=True)


@host.command()
@click.argument("name", metavar="HOST")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE|KEY-…")
@click.pass_obj
def label(engine: EngineAddress, name: str, labels: tuple[str, ...]) -> None:
    """Set labels of a host. `KEY-` removes one."""
    removed = dict.fromkeys((text[:-1] for text in labels if text.endswith("-") and "=" not in text), None)
    given = tuple(text for text in labels if "=" in text or not text.endswith("-"))
    changed = _change(engine, name, {"labels": {**_parse_labels(given), **removed}})
    echo(f"{changed['name']}: {_format_labels(changed['labels']) or 'no labels'}")


@host.command()
@click.argument("name", metavar="HOST")
@click.option("--keep", is_flag=True, help="Do not move its sandboxes.")
@click.option("--undo", is_flag=True, help="Use the host for new sandboxes again.")
@click.option("--wait", is_flag=True, help="Wait until the host has no sandboxes.")
@click.pass_obj
def drain(engine: EngineAddress, name: str, keep: bool, undo: bool, wait: bool) -> None:
    """Stop using a host for new sandboxes, and move its sandboxes to other hosts.

    Sandboxes keep their ids and files, but their processes end. Running sandboxes are booted on the other host. Sandboxes
    that mount a volume are not moved.
    """
    if undo and (keep or wait):
        raise click.UsageError("--undo cannot be combined with --keep or --wait.")
    changed = _change(engine, name, {"draining": not undo, "evacuating": not undo and not keep})
    if undo:
        echo(f"{changed['name']} gets new sandboxes again.")
        return
    echo(f"{changed['name']} gets no new sandboxes. It still has {_count_sandboxes(changed['sandboxes'])}.")
    if wait:
        _wait_until_empty(engine, changed)


def _wait_until_empty(engine: EngineAddress, shown: Any) -> None:
    """Print the progress until the host has no sandboxes."""
    reported: dict[str, str] = {}
    progress = ""
    with open_client(engine) as client:
        while shown["sandboxes"]:
            time.sleep(POLL_SECONDS)
            shown = request(client, "GET", f"/hosts/{shown['hostID']}")
            _report_failures(shown, reported, "could not be moved, will retry")
            before, progress = progress, _format_progress(shown)
            if progress != before:
                echo(progress)
            if not shown["draining"]:
                raise ConflictError(f"{shown['name']} is no longer being drained: somebody has undone it.")
    echo(f"{shown['name']} is empty.")


@host.command()
@click.argument("name", metavar="HOST")
@click.option("--wait", is_flag=True, help="Wait until all sandboxes with a checkpoint are recovered.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def recover(engine: EngineAddress, name: str, wait: bool, yes: bool) -> None:
    """Recover the sandboxes of a lost host: they continue on other hosts, from their last checkpoints.

    Use it only if the host cannot be reached and will not be back soon. Sandboxes keep their ids, but lose what they have
    written since their checkpoints, and their processes end. Sandboxes without a checkpoint are kept: they continue if the
    host returns, which then removes its copies of the recovered ones.
    """
    with open_client(engine) as client:
        found = request(client, "GET", f"/hosts/{name}")
        if not yes and found["state"] != "ready":
            click.confirm(f"{_describe_loss(found)} Recover them?", abort=True, err=True)
        found = request(client, "POST", f"/hosts/{found['hostID']}/recover")
    echo(f"{found['name']} is lost. {_count_sandboxes(found['checkpoints']['count'])} will continue on other hosts.")
    if wait:
        _wait_until_recovered(engine, found)


def _describe_loss(found: Any) -> str:
    """Return what is lost if the sandboxes of a host are recovered."""
    checkpoints, total = found["checkpoints"], found["sandboxes"]
    parts = [f"{found['name']} last answered {format_age(found['seenAt'])}." if found["seenAt"] else ""]
    parts.append(f"{checkpoints['count']} of {_count_sandboxes(total)} can be recovered")
    if checkpoints["oldest"]:
        parts.append(f"with files from {format_age(checkpoints['oldest'])} or later")
    return " ".join(filter(None, parts)) + ". Nothing that was written after that is recovered."


def _wait_until_recovered(engine: EngineAddress, shown: Any) -> None:
    """Print the progress until all sandboxes that have a checkpoint were recovered."""
    reported: dict[str, str] = {}
    progress = ""
    with open_client(engine) as client:
        while True:
            time.sleep(POLL_SECONDS)
            shown = request(client, "GET", f"/hosts/{shown['hostID']}")
            if not shown["lost"]:
                raise ConflictError(f"{shown['name']} is back, or somebody has undone its recovery.")
            _report_failures(shown, reported, "was not recovered")
            before, progress = progress, _format_progress(shown)
            if progress != before:
                echo(progress)
            if not shown["checkpoints"]["count"]:
                break
    kept = _count_sandboxes(shown["evacuation"]["total"] - shown["evacuation"]["moved"])
    echo(f"All sandboxes with a checkpoint continue on other hosts. Kept in case {shown['name']} returns: {kept}.")


def _report_failures(shown: Any, reported: dict[str, str], what: str) -> None:
    """Print why sandboxes were not moved, except for what is in `reported` already."""
    failures = (shown["evacuation"] or {}).get("failures", {})
    for sandbox_id, reason in failures.items():
        if reported.get(sandbox_id) != reason:
            echo(f"{sandbox_id} {what}: {reason}", err=True)
    reported.clear()
    reported.update(failures)


@host.command()
@click.argument("name", metavar="HOST")
@click.option("--force", is_flag=True, help="Remove the host even if it has sandboxes, which are then lost.")
@click.pass_obj
def forget(engine: EngineAddress, name: str, force: bool) -> None:
    """Remove a host from the engine, which then no longer accepts its certificate."""
    with open_client(engine) as client:
        request(client, "DELETE", f"/hosts/{name}", params={"force": force})
    echo(f"Removed {name}.")


def _change(engine: EngineAddress, name: str, body: dict[str, Any]) -> Any:
    with open_client(engine) as client:
        return request(client, "PATCH", f"/hosts/{name}", json=body)


def _count_sandboxes(number: int) -> str:
    return pluralize(number, "sandbox", "sandboxes")


def _parse_labels(labels: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in labels:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE.")
        pairs[key] = value
    return pairs


def _make_row(shown: Any) -> dict[str, Any]:
    room = shown["room"] or {}
    return {
        **shown,
        "state": _describe_state(shown),
        "memory": _format_room(room.get("memoryAvailable"), room.get("memoryTotal")),
        "disk": _format_room(room.get("diskFree"), room.get("diskTotal")),
        "address": "" if shown["local"] else f"{shown['address']}:{shown['port']}",
        "labels": _format_labels(shown["labels"]),
        "reason": _describe_evacuation(shown) or _describe_reason(shown) or room.get("full"),
    }


def _list_problems(source: Any) -> list[str]:
    """Return why the list of a source may be out of date, and why some of its machines are not hosts."""
    problems = [source["problem"]] if source["problem"] else []
    for machine in source["machines"]:
        if machine["problem"]:
            problems.append(f"{machine['name']} ({source['name']}) is not a host: {machine['problem']}")
    return problems


def _describe_state(shown: Any) -> str:
    if shown["lost"]:
        return "lost"
    return "draining" if shown["draining"] and shown["state"] == "ready" else str(shown["state"])


def _describe_reason(shown: Any) -> str | None:
    """Return why a host is not ready, and that its source does not list it."""
    if shown["state"] == "ready" or not shown.get("missingFromSource"):
        return str(shown["reason"]) if shown["reason"] else None
    return f"{str(shown['reason'] or '').rstrip('.')}. It is no longer in the list of {shown['source']}"


def _format_progress(shown: Any) -> str:
    """Return how many sandboxes of a host have been moved or are left."""
    if shown["evacuation"] is None:
        return f"{_count_sandboxes(shown['sandboxes'])} left"
    return f"{shown['evacuation']['moved']} of {_count_sandboxes(shown['evacuation']['total'])} moved"


def _describe_evacuation(shown: Any) -> str | None:
    """Return the progress of an evacuation and the first reason why a sandbox could not be moved."""
    if shown["evacuation"] is None or not shown["evacuation"]["total"]:
        return None
    reasons = list(shown["evacuation"]["failures"].values())
    return _format_progress(shown) + (f", {len(reasons)} could not be: {reasons[0]}" if reasons else "")


def _format_room(free: int | None, total: int | None) -> str | None:
    if free is None:
        return None
    text = f"{free / (1 << 30):.1f}"
    return f"{text} GiB" if total is None else f"{text} of {total / (1 << 30):.1f} GiB"


def _format_labels(labels: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _format_data_dir(data_dir: Path) -> str:
    return "" if data_dir == get_default_data_dir() / "host" else f" --data-dir {shlex.quote(str(data_dir))}"
