"""Services of systemd: `sandyard install-service` and `sandyard uninstall-service` for `sandyard up`, and what they share with
the service of a host."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from sandyard.cli.errors import CommandError
from sandyard.cli.output import echo
from sandyard.cli.up.account import USER_NAME
from sandyard.cli.up.data_directory import get_default_data_dir
from sandyard.kit.python import SAFE_FOLDER, make_python_command

UNIT_FOLDER = Path("/etc/systemd/system")
SETTINGS_FOLDER = Path("/etc/sandyard")
SYSTEMD_FOLDER = Path("/run/systemd/system")
"""Exists if systemd manages this machine."""
CHECKSUM = "# Checksum: "
REFUSED_CAPABILITIES = (
    *("CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_BLOCK_SUSPEND", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_SYS_BOOT"),
    *(
        "CAP_SYS_MODULE",
        "CAP_SYS_PACCT",
        "CAP_SYS_RAWIO",
        "CAP_SYS_TIME",
        "CAP_SYS_TTY_CONFIG",
        "CAP_SYSLOG",
        "CAP_WAKE_ALARM",
    ),
)
"""Capabilities of root that the engine does not need."""
ENVIRONMENT = """\
#SANDYARD_PUBLIC_URL=https://sandyard.example.com
#SANDYARD_TRUSTED_PROXIES=127.0.0.1
#SANDYARD_DATABASE_URL=postgresql://sandyard:password@localhost/sandyard
"""
UP_TIMEOUTS = """\
# The first start builds the root file systems of sandboxes.
TimeoutStartSec=30min
# The command stops the platform and the engine, in this order.
TimeoutStopSec=2min"""
SETTINGS_HEADER = """\
# Settings of the service `{name}`, one NAME=value on each line. Apply changes with: systemctl restart {name}
# The names are in docs/reference/settings.md. Only root may read this file, so it may contain secrets.
"""
_PLAIN_ARGUMENT = re.compile(r"[A-Za-z0-9@+=:,./_-]+")


@dataclass(frozen=True, slots=True)
class Service:
    """A service of systemd that a command of `sandyard` installs and another one removes."""

    name: str  # of the unit, without `.service`
    settings_name: str  # of the file with its settings
    description: str
    command_prefix: str  # the commands are `sandyard <prefix>install-service` and `sandyard <prefix>uninstall-service`
    example_settings: str  # lines of a new file of settings
    after: str  # units that are started first
    timeouts: str  # lines of the unit
    log_note: str = ""  # what its log contains besides, for the message of the installation

    @property
    def unit(self) -> Path:
        return UNIT_FOLDER / f"{self.name}.service"

    @property
    def settings(self) -> Path:
        return SETTINGS_FOLDER / self.settings_name


UP = Service(
    name="sandyard",
    settings_name="settings",
    description="Sandyard: sandboxes for coding agents",
    command_prefix="",
    example_settings=ENVIRONMENT,
    after="network-online.target postgresql.service",
    timeouts=UP_TIMEOUTS,
    log_note=", with the administrator's token at the first start",
)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The program that the service runs."""

    host: str
    port: int
    data_dir: Path
    user: str


@click.command("install-service")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address the platform listens on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8700, show_default=True, help="Port the platform listens on."
)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Directory for persistent data.")
@click.option(
    "--user", default=USER_NAME, show_default=True, help="User that the platform runs as, created if missing."
)
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and change nothing.")
@click.option("--force", is_flag=True, help="Replace a unit that was changed or written by somebody else.")
@click.option("--now", is_flag=True, help="Start the service, or restart it if it runs.")
def install_service(
    *, host: str, port: int, data_dir: Path | None, user: str, only_print: bool, force: bool, now: bool
) -> None:
    """Write a hardened systemd unit that runs `sandyard up`, and enable it.

    The engine runs as root, and the platform as its own user. Sandboxes survive a restart of the service. Settings are read from
    /etc/sandyard/settings.
    """
    data = (data_dir or (Path("/var/lib/sandyard") if os.geteuid() else get_default_data_dir())).absolute()
    text = sign(make_unit(ServiceOptions(host, port, data, user)))
    if only_print:
        echo(text, nl=False)
        return
    install(UP, text, force=force, now=now)


@click.command("uninstall-service")
@click.option("--force", is_flag=True, help="Remove a unit that was changed or written by somebody else.")
def uninstall_service(force: bool) -> None:
    """Stop the service and remove its unit. The data directory, the settings and running sandboxes stay."""
    uninstall(UP, force=force)


def install(service: Service, text: str, *, force: bool, now: bool) -> None:
    """Write this unit and enable it, with `now` also start it. A unit that somebody has changed is only replaced with `force`."""
    _check_root("install")
    if service.unit.exists() and not force and not is_unchanged(service.unit.read_text()):
        raise CommandError(
            f"{service.unit} was changed, or was not written by this command. Compare it with "
            f"`sandyard {service.command_prefix}install-service "
            f"--print`, and put your changes into a drop-in (systemctl edit {service.name}). --force replaces it."
        )
    write_file(service.unit, text, 0o644)
    if not service.settings.exists():
        service.settings.parent.mkdir(mode=0o755, exist_ok=True)
        write_file(service.settings, SETTINGS_HEADER.format(name=service.name) + service.example_settings, 0o600)
    echo(f"Wrote {service.unit}. Settings: {service.settings}.")
    if missing := list_settings(os.environ):
        echo(f"Set here, but not for the service: {', '.join(missing)}. Add them to {service.settings}.", err=True)
    if not SYSTEMD_FOLDER.is_dir():
        echo("systemd does not manage this machine, so the service was not enabled.", err=True)
        return
    _run_systemctl("daemon-reload")
    _run_systemctl("enable", service.unit.name)
    log = f"Its log{service.log_note}: journalctl -u {service.name}"
    if now:
        _run_systemctl("restart", service.unit.name)
        echo(f"The service is running. {log}")
    else:
        echo(f"Start it: systemctl start {service.name}. {log}")


def uninstall(service: Service, *, force: bool) -> None:
    """Stop the service and remove its unit. Without `force`, an edited unit is kept."""
    _check_root("uninstall")
    if not service.unit.exists():
        raise CommandError(f"There is no {service.unit}.")
    if not force and not is_unchanged(service.unit.read_text()):
        raise CommandError(
            f"{service.unit} was changed, or was not written by `sandyard {service.command_prefix}install-service`. --force removes it."
        )
    if SYSTEMD_FOLDER.is_dir():
        _run_systemctl("disable", "--now", service.unit.name)
    service.unit.unlink()
    if SYSTEMD_FOLDER.is_dir():
        _run_systemctl("daemon-reload")
    echo(f"Removed {service.unit}. Sandboxes keep running; the data directory and {service.settings} were not changed.")


def make_unit(options: ServiceOptions) -> str:
    """Return the unit of `sandyard up`. The platform gives up all privileges itself."""
    arguments = ["up", "--host", options.host, "--port", str(options.port), "--data-dir", str(options.data_dir)]
    arguments += ["--platform-user", options.user] if options.user != USER_NAME else []  # `up` creates the default user
    return render_unit(UP, arguments, options.data_dir)


def render_unit(service: Service, arguments: list[str], data_dir: Path) -> str:
    """Return a unit that runs this command of `sandyard`.

    Sandboxes inherit most restrictions that systemd can set (no new privileges, system call filters, address families, namespaces), and
    would no longer be able to run sudo, install packages or build containers. A private mount namespace would hide the engine's store from
    other commands and from the next engine. Sandboxes are confined by the engine.
    """
    command = make_python_command("sandyard", *arguments)
    return f"""\
[Unit]
Description={service.description}
Wants=network-online.target
After={service.after}
RequiresMountsFor={quote_argument(str(data_dir))}
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={" ".join(quote_argument(argument) for argument in command)}
EnvironmentFile=-{service.settings}
Environment=PYTHONUNBUFFERED=1
WorkingDirectory=/
{service.timeouts}
Restart=always
RestartSec=2

# Sandboxes keep running while the service is restarted, and an end for lack of memory concerns only the process itself.
KillMode=process
Delegate=yes
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576

# What the engine does not need. Sandboxes inherit what is set here, so other restrictions would break them.
CapabilityBoundingSet=~{" ".join(REFUSED_CAPABILITIES)}
KeyringMode=private

[Install]
WantedBy=multi-user.target
"""


def quote_argument(text: str) -> str:
    """Quote an argument for a unit file, in which percent and dollar signs have a meaning of their own."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$").replace("\n", "\\n")
    return escaped if _PLAIN_ARGUMENT.fullmatch(text) else f'"{escaped}"'


def sign(unit: str, service: Service = UP) -> str:
    """Add the line by which `is_unchanged` recognizes the unit."""
    written = f"# Written by `sandyard {service.command_prefix}install-service`."
    return f"{written} Put changes into a drop-in: systemctl edit {service.name}\n{CHECKSUM}{_digest(unit)}\n{unit}"


def is_unchanged(text: str) -> bool:
    """Return whether the text is a signed unit, of any version, that was not edited."""
    _, _, rest = text.partition("\n")
    line, _, unit = rest.partition("\n")
    return line == f"{CHECKSUM}{_digest(unit)}"


def list_settings(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the settings in the environment."""
    return sorted(
        name
        for name in environ
        if name.startswith(("SANDYARD_", "E2B_")) and name not in {"SANDYARD_TOKEN", "SANDYARD_URL"}
    )


def read_settings_file() -> dict[str, str]:
    """Return the settings of the service, if it is installed and this user may read them."""
    try:
        lines = UP.settings.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.strip().partition("=") for line in lines if not line.strip().startswith(("#", ";")))
    return {name.strip(): value.strip().strip("\"'") for name, separator, value in pairs if separator}


def write_file(path: Path, text: str, mode: int) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    temporary.rename(path)


def _digest(unit: str) -> str:
    return hashlib.sha256(unit.encode()).hexdigest()[:32]


def _check_root(verb: str) -> None:
    if os.geteuid() != 0:
        raise CommandError(f"Only root can {verb} a service. Run it with sudo; --print shows the unit.")
    if not UNIT_FOLDER.is_dir():
        raise CommandError(f"There is no {UNIT_FOLDER}: systemd is not installed on this machine.")


def _run_systemctl(*arguments: str) -> None:
    program = shutil.which("systemctl")
    if program is None:
        raise CommandError("Could not find systemctl.")
    done = subprocess.run(
        [program, *arguments], cwd=SAFE_FOLDER, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise CommandError(f"`systemctl {' '.join(arguments)}` failed: {done.stderr.strip() or done.returncode}")
