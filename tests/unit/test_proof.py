"""`make proof`: its trials exist, and the document says what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof import document
from tests.proof.record import VARIABLE, record
from tests.proof.results import Result, load, read_records, read_report, save
from tests.proof.trials import TRIALS

RESULT = Result(
    trial=TRIALS[0].name,
    passed=True,
    full=False,
    commit="abc",
    date="2026-11-19",
    machine="2 cores",
    seconds=12,
    tests=1,
    skipped=("no runsc",),
    tried={"kills of the engine": 1000},
    lost={"sandboxes": 0},
    measured={"board_loaded_in": "8 ms"},
)


def test_every_trial_has_tests_that_exist() -> None:
    assert len({trial.name for trial in TRIALS}) == len(TRIALS)
    for trial in TRIALS:
        files = [argument for argument in trial.tests if argument.startswith("tests/")]
        assert files and all((document.ROOT / file).exists() for file in files), trial.name


def test_records_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record({"kills": 1})  # without `make proof`, nothing is written
    monkeypatch.setenv(VARIABLE, str(tmp_path / "records"))
    assert read_records(tmp_path / "records") == ({}, {}, {})
    record({"kills": 2}, {"lines": 0}, took="1 s")
    record({"kills": 3}, {"lines": 1})
    assert read_records(tmp_path / "records") == ({"kills": 5}, {"lines": 1}, {"took": "1 s"})


def test_the_report_of_pytest_names_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped message="no runsc"/></testcase></testsuite></testsuites>'
    )
    assert read_report(tmp_path / "report.xml") == (1, ("no runsc",))
    assert read_report(tmp_path / "missing.xml") == (0, ())


def test_the_document_says_what_was_tried_and_what_failed(tmp_path: Path) -> None:
    save(tmp_path, RESULT)
    assert load(tmp_path, RESULT.trial) == RESULT
    text = document.write(document.load_results(tmp_path))
    claim = TRIALS[0].claim
    assert f"| {claim} | 1,000 kills of the engine | 0 sandboxes | passed |" in text
    assert f"| {TRIALS[1].claim} |  |  | not tried |" in text
    assert "2026-11-19, commit abc, 2 cores; 1 test in 12 s" in text
    assert "board loaded in: 8 ms." in text and "Skipped: no runsc" in text
    failed = Result(**{**{name: getattr(RESULT, name) for name in Result.__slots__}, "passed": False})
    assert "| see the output of the trial | **failed** |" in document.write({RESULT.trial: failed})
