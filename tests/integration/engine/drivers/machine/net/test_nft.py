"""The nftables library on rules that it cannot read."""

from __future__ import annotations

import importlib

import pytest

from sandyard.engine.drivers.machine.net.nft import NftUnavailableError, check_library

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def test_a_library_that_crashes_is_reported_and_does_not_end_the_engine() -> None:
    with pytest.raises(NftUnavailableError, match=r"crashes \(SIGSEGV\) on the rules.*newer version"):
        check_library(CRASH)


def test_a_library_that_works_or_refuses_is_not_a_crash() -> None:
    check_library("")
    check_library("raise SystemExit(1)")  # not installed, or no permission: the library itself says so later


def test_doctor_reports_the_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    # the package has a function of this name
    probe = importlib.import_module("sandyard.engine.drivers.machine.net.probe")
    monkeypatch.setattr(probe, "check_library", lambda: check_library(CRASH))
    finding = next(found for found in probe.probe() if found.name == "nftables")
    assert not finding.ok and "crashes" in finding.detail
