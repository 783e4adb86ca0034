"""`sandyard up`: its options, and the settings of the two processes."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from sandyard.cli.errors import CommandError
from sandyard.cli.output import echo, try_echo
from sandyard.cli.setup.command import format_own_command
from sandyard.cli.setup.packages import format_install_command, list_missing_packages
from sandyard.cli.up import account, lifeline
from sandyard.cli.up.child import Child
from sandyard.cli.up.data_directory import DataDirectory, get_default_data_dir
from sandyard.cli.up.health import choose_port
from sandyard.cli.up.local_git import LocalGit
from sandyard.cli.up.service_manager import notify_service_manager
from sandyard.cli.up.supervisor import supervise
from sandyard.cli.up.upgrade_trial import describe_schemas, try_upgrade
from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.engine.settings import EngineSettings
from sandyard.kit.endpoints import make_local_url
from sandyard.kit.errors import UnsupportedError
from sandyard.kit.python import make_python_command, make_python_environment
from sandyard.kit.settings import make_paths_absolute
from sandyard.platform.settings import PlatformSettings

LOOPBACK = "127.0.0.1"
PORT_TRIES = 20
AGENT_MEMORY_MB = "2048"
"""Default memory limit of a sandbox. Agents that are Node programs with a model's context in memory need more than the engine's default."""
ABSOLUTE_PATH = click.Path(resolve_path=True)
TOKEN_LINE = "admin token:"  # noqa: S105 - prefix of the line in which the platform prints it
TLS_LINE = "Over TLS"
"""Start of the engine's output about TLS, which is the last part of what it prints."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The servers to start, and their options."""

    host: str
    port: int
    engine: bool
    engine_port: int
    engine_options: tuple[str, ...]
    user: pwd.struct_passwd | None
    log_level: str | None
    local_git: str | None = None


@click.command()
@click.option("--host", default=LOOPBACK, show_default=True, help="Address the platform listens on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8700,
    show_default=True,
    help="Port the platform listens on; 0 selects a free port.",
)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Directory for persistent data.")
@click.option(
    "--engine",
    type=click.Choice(["embedded", "none"]),
    envvar="SANDYARD_ENGINE",
    default="embedded",
    show_default=True,
    help="none: use sandboxes of E2B Cloud (E2B_API_KEY) or of another endpoint (E2B_API_URL).",
)
@click.option(
    "--engine-port",
    type=click.IntRange(0, 65535),
    help="Port of the engine, on loopback.  [default: the next port, or any free one]",
)
@click.option(
    "--pool-size", type=click.IntRange(0), help="Number of sandboxes the engine keeps ready; 0 disables the pool."
)
@click.option("--driver", type=click.Choice(["auto", "namespace", "fake"]), help="Sandbox driver of the engine.")
@click.option(
    "--min-isolation",
    type=click.Choice(["namespace", "gvisor"]),
    help="The weakest isolation that sandboxes of the engine may have.  [default: namespace]",
)
@click.option("--domain", help="Domain of the engine: the API is at api.DOMAIN, previews at {port}-{sandbox}.DOMAIN.")
@click.option("--tls-port", type=click.IntRange(0, 65535), help="HTTPS port of the engine.  [default: none]")
@click.option("--tls-host", help="Address the engine listens on for HTTPS.  [default: 127.0.0.1]")
@click.option(
    "--tls-cert",
    type=ABSOLUTE_PATH,
    help="Certificate for the engine's HTTPS.  [default: issued by its own authority, see `sandyard ca`]",
)
@click.option("--tls-key", type=ABSOLUTE_PATH, help="Private key of --tls-cert.  [default: in the same file]")
@click.option(
    "--redirect-port",
    type=click.IntRange(0, 65535),
    help="Redirect the engine's HTTP on this port to HTTPS; 0 disables this.  [default: 80 if --tls-port is 443]",
)
@click.option("--join-address", help="Address by which other machines reach this one, to join as hosts of the engine.")
@click.option("--join-port", type=click.IntRange(0, 65535), help="Port at which they join.  [default: 3010]")
@click.option(
    "--platform-user",
    envvar="SANDYARD_PLATFORM_USER",
    help="Run the platform as this user; only as root.  [default: sandyard, created if missing]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log level of both processes.  [default: info]",
)
def up(
    *,
    host: str,
    port: int,
    data_dir: Path | None,
    engine: str,
    engine_port: int | None,
    pool_size: int | None,
    driver: str | None,
    platform_user: str | None,
    log_level: str | None,
    **passed_on: str | int | None,
) -> None:
    """Start the engine and the platform and keep them running until SIGTERM or Ctrl-C.

    A process that dies is restarted. The engine needs root for full isolation; the platform never needs it and runs as its own
    user if root starts them. All other settings are SANDYARD_<NAME> variables. When this command ends, for any reason,
    both processes end. Sandboxes keep running, and the next start finds them.
    """
    lifeline.watch_supervisor()  # `sandyard run` starts this command for its own lifetime
    user = account.choose_account(platform_user or None)
    data = DataDirectory(data_dir or _get_configured_data_dir() or get_default_data_dir())
    data.acquire_lock()
    embedded = engine == "embedded"
    port, engine_port = choose_ports(host, port, engine_port, embedded=embedded)
    options = [*(("--pool-size", str(pool_size)) if pool_size is not None else ())]
    options += ["--driver", driver] if driver is not None else []
    for name, value in passed_on.items():
        options += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    local_git = LocalGit(user.pw_uid, _list_repository_folders()) if user is not None else None
    if local_git is not None:
        local_git.start()
        account.compile_code()
    local_git_name = local_git.name if local_git is not None else None
    plan = Plan(host, port, embedded, engine_port, tuple(options), user, log_level, local_git_name)
    _warn(embedded, user)
    children = make_children(plan, data)
    try_upgrade(data, children)
    asyncio.run(supervise(children, lambda: _announce(plan, data)))
    echo("Stopped. Any running sandboxes keep running; the next start finds them." if embedded else "Stopped.")


def make_children(plan: Plan, data: DataDirectory) -> list[Child]:
    """Return the processes to start. The engine comes first, because the platform needs it."""
    if plan.user is not None:
        data.give_platform_to(plan.user)
    elif os.geteuid() == 0:
        data.take_platform_back()
    given = make_python_environment(make_paths_absolute(os.environ, EngineSettings, PlatformSettings))
    common = {name: value for name, value in given.items() if name not in {"SANDYARD_TOKEN", "SANDYARD_API_KEYS"}}
    if plan.log_level is not None:
        common["SANDYARD_LOG_LEVEL"] = plan.log_level
    platform = {name: value for name, value in common.items() if name != "SANDYARD_ENGINE_DATABASE_URL"} | {
        "SANDYARD_HOST": plan.host,
        "SANDYARD_PORT": str(plan.port),
        "SANDYARD_DATA_DIR": str(data.platform),
    }
    if plan.user is not None:
        home = plan.user.pw_dir if Path(plan.user.pw_dir).is_dir() else str(data.platform)
        platform |= {"HOME": home, "USER": plan.user.pw_name, "LOGNAME": plan.user.pw_name}
        if platform.get("PYTHONPYCACHEPREFIX"):
            platform["PYTHONPYCACHEPREFIX"] = str(data.platform / "bytecode")
        private_variables = [name for name in platform if name == "TMPDIR" or name.startswith("XDG_")]
        platform = {name: value for name, value in platform.items() if name not in private_variables}
    if plan.local_git is not None:
        platform["SANDYARD_LOCAL_GIT"] = plan.local_git
    started = []
    if plan.engine:
        key, url = data.get_engine_key().reveal(), make_local_url(LOOPBACK, plan.engine_port)
        data.record_engine_url(url)
        platform = {name: value for name, value in platform.items() if not name.startswith("E2B_")}
        platform |= {"E2B_API_KEY": key, "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
        address_options = ("--host", LOOPBACK, "--port", str(plan.engine_port), "--data-dir", str(data.engine))
        command = make_python_command("sandyard", "engine", *address_options, *plan.engine_options)
        keys = given.get("SANDYARD_API_KEYS")
        engine = {"SANDYARD_DEFAULT_MEMORY_MB": AGENT_MEMORY_MB, **common}
        engine |= {"SANDYARD_API_KEYS": f"{keys},{key}" if keys else key}
        started.append(
            Child("engine", command, engine, f"{url}/health", 204, data.lock_fd, try_echo, _print_tls_output())
        )
    # without sandboxes the platform never becomes ready, but it still serves its health
    health_path = "/ready" if platform.get("E2B_API_KEY") else "/health"
    ready = f"{make_local_url(plan.host, plan.port)}{health_path}"
    print_output = _print_platform_output(os.environ.get("SANDYARD_PUBLIC_URL") or make_local_url(plan.host, plan.port))
    command = make_python_command("sandyard", "platform")
    if plan.user is not None:
        command = account.make_stepdown_command(plan.user, command, platform, data.platform)
    started.append(
        Child("platform", command, platform, ready, 200, data.lock_fd, try_echo, print_output, starts_early=True)
    )
    return started


def _announce(plan: Plan, data: DataDirectory) -> None:
    notify_service_manager("READY=1")
    data.record_schemas(describe_schemas())
    url = make_local_url(plan.host, plan.port)
    try_echo(f"Sandyard is at {url}; its data is in {data.path}.")
    try_echo(f"To use it from the command line: sandyard login {url}")
    if plan.engine:
        try_echo(
            f"E2B clients: E2B_API_URL, E2B_SANDBOX_URL and E2B_VOLUME_API_URL={make_local_url(LOOPBACK, plan.engine_port)}, "
            f"API key in {data.path / 'engine.key'}."
        )
        announce_missing_parts()
        announce_missing_gvisor()


def announce_missing_parts() -> None:
    """Say what sandboxes lack on this machine, and the command that helps."""
    if os.geteuid() != 0:
        try_echo(
            "Without root, sandboxes have no limits, no firewall and no network of their own, and use the programs of this machine. "
            f"With root, they have all of these: {format_own_command('up')}; `sandyard doctor` shows details."
        )
    if missing := list_missing_packages():
        parts = "; ".join(f"{package.name} ({package.purpose})" for package in missing)
        try_echo(f"Missing packages: {parts}.")
        try_echo(f"To install them: {format_install_command(missing)}, then start Sandyard again.")


def announce_missing_gvisor() -> None:
    """Say how to add gVisor, if only that is missing. Without root, more is: see `sandyard doctor`."""
    wanted = os.environ.get("SANDYARD_RUNSC_PATH")
    try:
        Runsc.find(Path(wanted) if wanted else None)
    except UnsupportedError as error:
        if os.geteuid() == 0:
            try_echo(f"Optional, for sandboxes with a kernel of their own: {error.message}, then start Sandyard again.")


def _print_platform_output(url: str) -> Callable[[str], None]:
    """Return a function that prints the platform's output. After the admin token, on the first start, it adds a URL that signs a browser
    in. The part after the # is never sent over the network."""

    def print_output(line: str) -> None:
        if line.startswith(TOKEN_LINE):
            line += f"\nsign in at:  {url.rstrip('/')}/sign-in#token={line.removeprefix(TOKEN_LINE).strip()}"
        try_echo(line)

    return print_output


def _print_tls_output() -> Callable[[str], None]:
    """Return a function that prints the engine's output about TLS: the domain for clients and the authority to trust. It also prints why
    the engine stands by."""
    started = False

    def print_output(line: str) -> None:
        nonlocal started
        started = started or line.startswith(TLS_LINE)
        if started or line.startswith(lifeline.STANDBY):
            try_echo(line)

    return print_output


def _warn(embedded: bool, user: pwd.struct_passwd | None) -> None:
    if user is None and os.geteuid() == 0:
        echo(
            "Warning: the platform runs as root, including all code that parses untrusted data. Omit --platform-user root.",
            err=True,
        )
    key, url = os.environ.get("E2B_API_KEY"), os.environ.get("E2B_API_URL")
    if embedded and (key or url):
        echo("E2B_API_KEY and E2B_API_URL are set but not used. To use them, add --engine none.", err=True)
    if not embedded and not key:
        echo("Warning: there are no sandboxes, because of --engine none without E2B_API_KEY.", err=True)


def choose_ports(host: str, wanted: int, engine_port: int | None, *, embedded: bool) -> tuple[int, int]:
    """Return the ports of the platform and of the engine. By default the engine gets the port after the platform's, or any free port if
    that one is taken. With `wanted` 0, two free ports in a row are tried first."""
    for tries_left in range(PORT_TRIES, -1, -1):
        port = choose_port(host, wanted, "--port")
        next_port = engine_port if engine_port is not None else port + 1 if port < 65535 else 0
        try:
            return port, choose_port(LOOPBACK, next_port, "--engine-port") if embedded else next_port
        except CommandError:
            if engine_port is not None:
                raise
            if wanted != 0 or not tries_left:
                return port, choose_port(LOOPBACK, 0, "--engine-port")
    raise AssertionError("the last try returns or raises")


def _list_repository_folders() -> list[str]:
    """Return the directories that may contain local repositories: all by default, none for `none`."""
    text = os.environ.get("SANDYARD_LOCAL_REPOSITORIES", "/")
    return [str(Path(part.strip()).absolute()) for part in text.split(",") if part.strip() not in {"", "none"}]


def _get_configured_data_dir() -> Path | None:
    text = os.environ.get("SANDYARD_DATA_DIR")
    return Path(text) if text else None
