"""The systemd service: its unit, and what is done with a unit that somebody has changed."""

from __future__ import annotations

import configparser
import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sandyard.cli import service
from sandyard.cli.main import cli
from sandyard.cli.service import ServiceOptions, is_unchanged, make_unit, quote_argument, sign
from sandyard.cli.up.service_manager import VARIABLE, notify_service_manager


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with systemd. Returns the folder of units; `calls` in it lists what systemctl was asked to do."""
    units = tmp_path / "system"
    units.mkdir()
    monkeypatch.setattr(service, "UNIT_FOLDER", units)
    monkeypatch.setattr(service, "SETTINGS_FOLDER", tmp_path / "sandyard")
    monkeypatch.setattr(service, "SYSTEMD_FOLDER", tmp_path)
    monkeypatch.setattr(service.os, "geteuid", lambda: 0)

    def record(*arguments: str) -> None:
        with (units / "calls").open("a") as file:
            file.write(" ".join(arguments) + "\n")

    monkeypatch.setattr(service, "_run_systemctl", record)
    return units


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def parse(unit: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit)
    return {section: dict(parser[section]) for section in parser.sections()}


def test_the_unit_has_this_structure() -> None:
    found = parse(make_unit(ServiceOptions("0.0.0.0", 80, Path("/srv/my data"), "agents")))
    command = found["Service"].pop("ExecStart").split(" ", 1)
    assert command[0].startswith("/")
    assert command[1] == '-P -m sandyard up --host 0.0.0.0 --port 80 --data-dir "/srv/my data" --platform-user agents'
    capabilities = found["Service"].pop("CapabilityBoundingSet")
    assert capabilities.startswith("~CAP_")
    assert {"CAP_SYS_MODULE", "CAP_SYS_BOOT", "CAP_SYS_TIME"} <= set(capabilities[1:].split())
    assert found == {
        "Unit": {
            "Description": "Sandyard: sandboxes for coding agents",
            "Wants": "network-online.target",
            "After": "network-online.target postgresql.service",
            "RequiresMountsFor": '"/srv/my data"',
            "StartLimitIntervalSec": "0",
        },
        "Service": {
            "Type": "notify",
            "NotifyAccess": "main",
            "EnvironmentFile": f"-{service.UP.settings}",
            "Environment": "PYTHONUNBUFFERED=1",
            "WorkingDirectory": "/",
            "TimeoutStartSec": "30min",
            "TimeoutStopSec": "2min",
            "Restart": "always",
            "RestartSec": "2",
            "KillMode": "process",
            "Delegate": "yes",
            "OOMPolicy": "continue",
            "TasksMax": "infinity",
            "LimitNOFILE": "1048576",
            "KeyringMode": "private",
        },
        "Install": {"WantedBy": "multi-user.target"},
    }
    assert "--platform-user" not in make_unit(ServiceOptions("::1", 8700, Path("/srv"), "sandyard")), "`up` creates it"


def test_arguments_are_quoted_for_units() -> None:
    assert quote_argument("/srv/data-1") == "/srv/data-1"
    assert quote_argument('a "b" 100% $HOME\\') == '"a \\"b\\" 100%% $$HOME\\\\"'


def test_printing_changes_nothing(machine: Path) -> None:
    printed = call("install-service", "--print", "--port", "9000").stdout
    assert is_unchanged(printed)
    assert "--port 9000" in printed
    assert list(machine.iterdir()) == []


def test_the_unit_is_written_and_enabled(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDYARD_PUBLIC_URL", "https://yard.example")
    done = call("install-service")
    assert done.exit_code == 0, done.output
    assert "not for the service: SANDYARD_PUBLIC_URL" in done.stderr
    assert "systemctl start sandyard" in done.stdout
    unit = machine / "sandyard.service"
    assert is_unchanged(unit.read_text())
    assert unit.stat().st_mode & 0o777 == 0o644
    assert service.UP.settings.stat().st_mode & 0o777 == 0o600
    service.UP.settings.write_text("SANDYARD_LOG_LEVEL=debug\n")
    assert call("install-service", "--now", "--port", "9000").exit_code == 0, "its own unit is replaced"
    assert "--port 9000" in unit.read_text()
    assert service.UP.settings.read_text() == "SANDYARD_LOG_LEVEL=debug\n"
    calls = (machine / "calls").read_text().splitlines()
    enabling = ["daemon-reload", "enable sandyard.service"]
    assert calls == [*enabling, *enabling, "restart sandyard.service"]
    assert call("uninstall-service").exit_code == 0
    assert not unit.exists()
    assert service.UP.settings.exists()
    assert (machine / "calls").read_text().splitlines()[5:] == ["disable --now sandyard.service", "daemon-reload"]
    assert call("uninstall-service").exit_code == 1


@pytest.mark.parametrize("text", ["[Unit]\n", "", sign("[Service]\nRestart=always\n").replace("always", "no")])
def test_a_changed_unit_is_kept_without_force(machine: Path, text: str) -> None:
    unit = machine / "sandyard.service"
    unit.write_text(text)
    for command in ("install-service", "uninstall-service"):
        refused = call(command)
        assert (refused.exit_code, "was changed" in refused.stderr, unit.read_text()) == (1, True, text)
    assert not (machine / "calls").exists()
    assert call("install-service", "--force").exit_code == 0
    assert is_unchanged(unit.read_text())
    unit.write_text(text)
    assert call("uninstall-service", "--force").exit_code == 0
    assert not unit.exists()


def test_only_root_installs_a_service(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.os, "geteuid", lambda: 1000)
    refused = call("install-service")
    assert (refused.exit_code, "Only root" in refused.stderr, list(machine.iterdir())) == (1, True, [])
    assert call("install-service", "--print").exit_code == 0


def test_the_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notify_service_manager("READY=1")  # without one
    for address, name in ((str(tmp_path / "notify"), str(tmp_path / "notify")), (f"\0{tmp_path}", f"@{tmp_path}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address)
            monkeypatch.setenv(VARIABLE, name)
            notify_service_manager("READY=1")
            assert manager.recv(100) == b"READY=1"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nobody"))
    notify_service_manager("READY=1")


def test_a_host_has_a_service_of_its_own(machine: Path, tmp_path: Path) -> None:
    data = tmp_path / "my host"
    printed = call("host", "install-service", "--print", "--data-dir", str(data), "--listen", "10.0.0.2").stdout
    assert is_unchanged(printed)
    found = parse(printed)["Service"]
    assert found["ExecStart"].endswith(f'-m sandyard host serve --listen 10.0.0.2 --data-dir "{data}"')
    assert (found["KillMode"], found["Type"]) == ("process", "notify"), "sandboxes outlive the service"
    refused = call("host", "install-service", "--data-dir", str(data))
    assert (refused.exit_code, "has not joined" in refused.stderr, list(machine.iterdir())) == (1, True, [])

    (data / "identity").mkdir(parents=True)
    joined = {"id": "host-1", "name": "one", "engine": "10.0.0.1:3010", "port": 3011}
    (data / "identity" / "host.json").write_text(json.dumps(joined))
    assert call("install-service").exit_code == 0
    assert call("host", "install-service", "--now", "--data-dir", str(data)).exit_code == 0
    assert {path.name for path in machine.glob("*.service")} == {"sandyard.service", "sandyard-host.service"}
    assert {path.name for path in service.SETTINGS_FOLDER.iterdir()} == {"settings", "host"}
    assert "systemctl restart sandyard-host\n" in (service.SETTINGS_FOLDER / "host").read_text()
    assert "restart sandyard-host.service" in (machine / "calls").read_text()
    assert call("host", "uninstall-service").exit_code == 0
    assert [path.name for path in machine.glob("*.service")] == ["sandyard.service"]
