"""Generate docs/proof.md from the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.proof.results import Result, load
from tests.proof.trials import TRIALS, Trial

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "proof.md"
RESULTS = ROOT / ".cache" / "proof"
_OPENING = """# Proof

This page is written by `make proof`: do not edit it. Each trial runs the real platform, engine, SDKs and forge double on one machine,
kills or disturbs them, and then counts what is missing. `make proof ARGS="--only NAME"` repeats one trial, `make proof ARGS=--full` runs all
of them with the larger numbers (hours). The tests of every trial also run in `make test-all`.
"""


def write(results: Mapping[str, Result]) -> str:
    """Return the document."""
    return "\n".join((_OPENING, *_summarize(results), *_describe(results))) + "\n"


def load_results(folder: Path = RESULTS) -> dict[str, Result]:
    """Return the last result of every trial that has one."""
    found = {trial.name: load(folder, trial.name) for trial in TRIALS}
    return {name: result for name, result in found.items() if result is not None}


def _summarize(results: Mapping[str, Result]) -> Iterator[str]:
    yield "| Claim | Tried | Lost | Result |\n|---|---|---|---|"
    for trial in TRIALS:
        result = results.get(trial.name)
        cells = (
            ("", "", "not tried")
            if result is None
            else (_describe_tried(result), _describe_lost(result), _verdict(result))
        )
        yield f"| {trial.claim} | {' | '.join(cells)} |"


def _describe(results: Mapping[str, Result]) -> Iterator[str]:
    yield "\n## Trials"
    for trial in TRIALS:
        yield f"\n### {trial.name}\n{trial.claim} Tests: {_list_tests(trial)}."
        result = results.get(trial.name)
        if result is None:
            continue
        size = "full" if result.full else "short"
        yield (
            f"\nLast run ({size}): {result.date}, commit {result.commit}, {result.machine}; {_count(result.tests, 'test')} "
            f"in {result.seconds} s."
        )
        if result.measured:
            yield (
                "\n" + "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in result.measured.items()) + "."
            )
        for reason in result.skipped:
            yield f"\nSkipped: {reason}"


def _describe_tried(result: Result) -> str:
    return _join(result.tried) or _count(result.tests, "test")


def _describe_lost(result: Result) -> str:
    if not result.passed:
        return "see the output of the trial"
    return _join(result.lost) or "nothing"


def _verdict(result: Result) -> str:
    return "passed" if result.passed else "**failed**"


def _join(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _list_tests(trial: Trial) -> str:
    return ", ".join(f"`{argument}`" for argument in trial.tests if argument.startswith("tests/"))
