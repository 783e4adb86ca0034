"""`python -m tests.proof`: run the trials one after another and write docs/proof.md. Ends with 1 if one fails."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.report import machine

from tests.proof import document
from tests.proof.record import VARIABLE
from tests.proof.results import Result, read_records, read_report, save
from tests.proof.trials import TRIALS, Trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="proof", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the larger numbers: hours instead of minutes")
    parser.add_argument(
        "--only", action="append", choices=[trial.name for trial in TRIALS], help="one trial; can be repeated"
    )
    options = parser.parse_args()
    trials = [trial for trial in TRIALS if options.only is None or trial.name in options.only]
    failed = []
    for number, trial in enumerate(trials, 1):
        print(f"{number}/{len(trials)} {trial.name}: {trial.claim}", flush=True)
        result = run(trial, full=options.full)
        save(document.RESULTS, result)
        document.TARGET.write_text(document.write(document.load_results()))
        print(f"    {'passed' if result.passed else 'FAILED'} after {result.seconds} s", flush=True)
        if not result.passed:
            failed.append(trial.name)
    print(f"written to {document.TARGET.relative_to(document.ROOT)}")
    if failed:
        print(f"Failed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def run(trial: Trial, *, full: bool) -> Result:
    """Run the tests of a trial in a process of their own. Their output is shown if they fail."""
    with tempfile.TemporaryDirectory(prefix="sandyard-proof-") as name:
        records, report = Path(name) / "records", Path(name) / "report.xml"
        settings = {**trial.short, **(trial.full if full else {}), VARIABLE: str(records)}
        command = [sys.executable, "-m", "pytest", "--all", "-q", f"--junitxml={report}", *trial.tests]
        began = time.monotonic()
        ran = subprocess.run(
            command,
            cwd=document.ROOT,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        seconds = round(time.monotonic() - began)
        if ran.returncode:
            print(ran.stdout.decode(errors="replace")[-20_000:], flush=True)
        tests, skipped = read_report(report)
        tried, lost, measured = read_records(records)
    return Result(
        trial=trial.name,
        passed=ran.returncode == 0 and tests > 0,
        full=full,
        commit=_describe_commit(),
        date=datetime.now(UTC).date().isoformat(),
        machine=_describe_machine(),
        seconds=seconds,
        tests=tests,
        skipped=skipped,
        tried=tried,
        lost=lost,
        measured=measured,
    )


def _describe_machine() -> str:
    facts = machine()
    return f"{facts['cores']} cores, {facts['arch']}, Linux {facts['kernel']}, Python {facts['python']}"


def _describe_commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, cwd=document.ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
