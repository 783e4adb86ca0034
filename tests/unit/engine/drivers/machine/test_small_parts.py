"""Capacity, policies, the base layer and errors: each is too small for a test file of its own."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sandyard.engine.contract import HostRule, NetworkPolicy
from sandyard.engine.drivers.machine import base_layer, policies
from sandyard.engine.drivers.machine.capacity import Memory
from sandyard.engine.drivers.machine.errors import translate_child_error, translate_errno
from sandyard.kit.errors import FullError, NoSpaceError, SandyardError


def _write_meminfo(path: Path, total_mb: int, available_mb: int) -> Path:
    path.write_text(f"MemTotal: {total_mb << 10} kB\nMemFree: 1 kB\nMemAvailable: {available_mb << 10} kB\n")
    return path


def test_the_host_is_full_when_little_memory_is_available(tmp_path: Path) -> None:
    Memory(_write_meminfo(tmp_path / "a", 8000, 2000)).check()
    with pytest.raises(FullError, match="memory"):
        Memory(_write_meminfo(tmp_path / "b", 8000, 200)).check()
    with pytest.raises(FullError, match="memory"):
        Memory(_write_meminfo(tmp_path / "c", 64000, 1000)).check()


def test_a_policy_is_saved_and_loaded(tmp_path: Path) -> None:
    strict = NetworkPolicy(False, ("1.1.1.1", "*.example.com"), ("0.0.0.0/0",))
    policies.create_directory(tmp_path / "one", strict)
    assert policies.load(tmp_path / "one") == strict
    policies.save(tmp_path / "one", NetworkPolicy())
    assert policies.load(tmp_path / "one") == NetworkPolicy()
    policies.create_directory(tmp_path / "one", strict)
    assert policies.load(tmp_path / "one") == strict


def test_an_unreadable_policy_denies_everything(tmp_path: Path) -> None:
    policies.create_directory(tmp_path / "one", NetworkPolicy(deny_out=("1.1.1.1",)))
    (tmp_path / "one/network.json").write_text("{")
    assert policies.load(tmp_path / "one") == NetworkPolicy(allow_internet=False)


def test_the_base_layer_depends_only_on_the_name_server(tmp_path: Path) -> None:
    (tmp_path / base_layer.DIRECTORY).mkdir()
    one = base_layer.get_or_create(tmp_path, "10.0.0.1")
    assert base_layer.get_or_create(tmp_path, "10.0.0.1") == one
    assert base_layer.get_or_create(tmp_path, "10.0.0.2") != one
    assert "nameserver 10.0.0.1\n" in Path(one, "etc/resolv.conf").read_text()
    assert base_layer.HOSTNAME in Path(one, "etc/hosts").read_text()
    assert Path(one, "etc").stat().st_mode & 0o777 == 0o755
    assert {path.name for path in Path(one).iterdir()} == {"etc", "proc", "sys", "dev"}
    assert "nameserver" not in Path(base_layer.get_or_create(tmp_path, None), "etc/resolv.conf").read_text()


def test_errors_name_the_exhausted_resource() -> None:
    assert isinstance(translate_errno(errno.EDQUOT, "x"), NoSpaceError)
    assert isinstance(translate_errno(errno.ENOMEM, "x"), FullError)
    assert "processes" in translate_errno(errno.EAGAIN, "x").message
    error = translate_child_error({"error": "could not join its network: Invalid argument", "errno": errno.EINVAL})
    assert type(error) is SandyardError
    assert error.message == "The sandbox could not join its network: Invalid argument."


def test_a_suspended_sandbox_keeps_its_whole_policy(tmp_path: Path) -> None:
    rules = (HostRule("api.test", (("authorization", "Bearer ${{ TOKEN }}"),)),)
    for policy in (NetworkPolicy(), NetworkPolicy(False, ("web.test",), ("10.0.0.0/8",), rules)):
        policies.seal_memory(tmp_path, policy)
        assert policies.load_sealed(tmp_path) == policy
