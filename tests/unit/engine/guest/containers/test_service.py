from __future__ import annotations

import shutil
import socket
import sys
import time
from pathlib import Path

import pytest

from sandyard.engine.guest.containers import service

LINKS = """1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65522
    link/loopback 00:00:00:00:00:00 brd ff:ff:ff:ff:ff:ff
2: eth0: <UP,LOWER_UP> mtu 1400
3: docker0: <UP,LOWER_UP> mtu 1486
12: br-0123456789ab: <UP,LOWER_UP> mtu 1486
13: br-mine: <UP,LOWER_UP> mtu 1486
14: veth0123456: <UP,LOWER_UP> mtu 1486
"""


def test_only_bridges_of_docker_are_removed() -> None:
    assert service.find_bridges(LINKS) == ["docker0", "br-0123456789ab"]


def test_settings_of_the_image_apply_unless_gvisor_needs_others() -> None:
    settings = {"registry-mirrors": ["https://mirror"], "storage-driver": "fuse-overlayfs", "data-root": "/data"}
    config = service.make_config(settings, "/runtime")
    assert config["registry-mirrors"] == ["https://mirror"]
    assert config["default-ulimits"]["nofile"]["Soft"] == 1024
    assert service.make_config({"default-ulimits": {}}, "/runtime")["default-ulimits"] == {}
    assert config["storage-driver"] == "overlay2" and "data-root" not in config
    assert config["runtimes"][config["default-runtime"]] == {"path": "/runtime"}


def test_settings_that_are_not_an_object_are_refused() -> None:
    with pytest.raises(TypeError, match="does not contain a JSON object"):
        service.make_config([], "/runtime")  # type: ignore[arg-type]


def test_packets_of_containers_get_the_address_of_the_sandbox_and_are_forwarded_outside_only() -> None:
    rules = [" ".join(rule) for rule in service.make_rules("192.0.0.2")]
    sources = [rule for rule in rules if "nat" in rule]
    assert sources[0] == "-t nat -A POSTROUTING -s 127.0.0.0/8 -j ACCEPT", (
        "the sandbox's own connections stay unchanged"
    )
    assert all("--to-source 192.0.0.2" in rule for rule in sources if "SNAT" in rule)
    assert rules[-1] == "-A FORWARD -j DROP"


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("log", ["/dev/full", "/nonexistent/log"])
def test_a_full_disk_does_not_end_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str) -> None:
    refused = []

    def refuse(listener: socket.socket) -> None:
        refused.append(listener.accept()[0])

    def stop(seconds: float) -> None:
        raise StoppedError

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        client.connect(str(tmp_path / "socket"))
        monkeypatch.setattr(sys, "argv", ["service", "192.0.0.2", "/runtime", "0"])
        monkeypatch.setattr(shutil, "which", lambda name, path: "/usr/bin/dockerd")
        monkeypatch.setattr(service, "_listen", lambda owner: listener)
        monkeypatch.setattr(service, "_PROGRAMS", str(tmp_path / "bin"))
        monkeypatch.setattr(service, "_FORWARDING", str(tmp_path / "missing" / "ip_forward"))
        monkeypatch.setattr(service, "_refuse_clients", refuse)
        monkeypatch.setattr(service, "LOG", log)
        monkeypatch.setattr(time, "sleep", stop)
        with pytest.raises(StoppedError):
            service.main()
        assert refused
        refused[0].close()
