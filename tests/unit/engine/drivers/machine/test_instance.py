from __future__ import annotations

import itertools
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.drivers.machine import instance as instances


def _load(tmp_path: Path, name: str, slots: int = 256) -> instances.Instance:
    (tmp_path / name).mkdir(exist_ok=True)
    return instances.load(tmp_path / name, slots, claims=tmp_path / "claims")


def test_an_instance_keeps_its_identity_when_reloaded(tmp_path: Path) -> None:
    first = _load(tmp_path, "one")
    assert _load(tmp_path, "one") == first
    assert first.get_first_uid(1) - first.get_first_uid(0) == 65_536
    assert first.slots >= 256


def test_instances_do_not_share_ids(tmp_path: Path) -> None:
    loaded = [_load(tmp_path, f"engine{number}", slots=1024) for number in range(5)]
    ranges = sorted((item.get_first_uid(0), item.get_first_uid(item.slots)) for item in loaded)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert all(end <= 2**31 for _, end in ranges)
    assert len({item.name for item in loaded}) == 5


def test_instances_that_start_at_the_same_time_do_not_share_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one starts while the first has created its claim and not written it yet."""
    second: list[instances.Instance] = []
    other_engine = threading.Thread(target=lambda: second.append(_load(tmp_path, "two")))
    write = json.dump

    def start_other_engine(*arguments: Any) -> None:
        if other_engine.ident is None:
            other_engine.start()
            other_engine.join(timeout=0.2)  # it has to wait for the first
        write(*arguments)

    monkeypatch.setattr(json, "dump", start_other_engine)
    first = _load(tmp_path, "one")
    other_engine.join()
    assert first.first_uid != second[0].first_uid


def test_the_range_of_a_deleted_data_directory_is_reused(tmp_path: Path) -> None:
    first = _load(tmp_path, "one")
    shutil.rmtree(tmp_path / "one")
    assert _load(tmp_path, "two").first_uid == first.first_uid


def test_a_released_range_can_be_claimed_by_another_instance(tmp_path: Path) -> None:
    first = _load(tmp_path, "one")
    instances.release(first, tmp_path / "one", claims=tmp_path / "claims")
    second = _load(tmp_path, "two")
    assert second.first_uid == first.first_uid
    again = _load(tmp_path, "one")
    assert again.name == first.name
    assert again.first_uid != second.first_uid


def test_when_all_ranges_are_taken_the_first_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "BLOCKS", 4)
    loaded = [_load(tmp_path, f"engine{number}") for number in range(instances.BLOCKS + 1)]
    assert loaded[-1].first_uid == instances.FIRST_UID
    assert loaded[-1].slots == instances.SLOTS_PER_BLOCK


def test_a_copied_data_directory_gets_a_new_identity(tmp_path: Path) -> None:
    first = instances.set_cgroups(_load(tmp_path, "one"), {"cpu": "/sandyard/one"})
    instances.save(tmp_path / "one", first)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    copy = _load(tmp_path, "copy")
    assert copy.is_copy
    assert copy.name != first.name
    assert copy.first_uid != first.first_uid
    assert copy.cgroups == {}
    assert _load(tmp_path, "one") == first
    assert _load(tmp_path, "copy") == copy, "it stays a copy until it is adopted"
    adopted = instances.mark_adopted(tmp_path / "copy", copy)
    assert adopted == replace(copy, is_copy=False)
    assert _load(tmp_path, "copy") == adopted, "an adopted directory is no longer a copy"


def test_a_renamed_data_directory_keeps_its_identity(tmp_path: Path) -> None:
    first = _load(tmp_path, "one")
    (tmp_path / "one").rename(tmp_path / "two")
    again = _load(tmp_path, "two")
    assert (again.name, again.is_copy) == (first.name, False)
