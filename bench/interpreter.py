"""The code interpreter beside a bare Jupyter kernel: in the same sandbox, with the same Python, without our server."""

from __future__ import annotations

import json
from pathlib import Path

from e2b_code_interpreter import Sandbox

from bench import kernel
from bench.measures import timed
from bench.report import Row, median

WARM = 3
SCRIPT = "/tmp/kernel.py"


def measure(rounds: int) -> list[Row]:
    """Against the engine that the environment names."""
    sandbox = Sandbox.create(timeout=600)
    try:
        for _ in range(WARM):
            assert sandbox.run_code("1+1").text == "2"
        runs = [timed(lambda: sandbox.run_code("1+1")) for _ in range(rounds)]
        contexts = new_contexts(sandbox, max(5, rounds // 10))
        bare = bare_kernel(sandbox, rounds)
    finally:
        sandbox.kill()
    return [
        Row("code interpreter, 1+1, p50", median(runs), "ms", bare["execute"], None),
        Row("code interpreter, a new context, p50", median(contexts), "ms", bare["start"], None),
    ]


def new_contexts(sandbox: Sandbox, count: int) -> list[float]:
    """Return how long each new context takes to exist. Using it once and removing it are not measured."""
    samples = []
    for _ in range(count):
        before = {context.id for context in sandbox.list_code_contexts()}
        samples.append(timed(sandbox.create_code_context))
        (made,) = [context for context in sandbox.list_code_contexts() if context.id not in before]
        assert sandbox.run_code("1+1", context=made).text == "2"
        sandbox.remove_code_context(made)
    return samples


def bare_kernel(sandbox: Sandbox, rounds: int) -> dict[str, float]:
    """Return the milliseconds that `kernel.py` measures."""
    python = "".join(sandbox.run_code("import sys; print(sys.executable)").logs.stdout).strip()
    sandbox.files.write(SCRIPT, Path(kernel.__file__).read_text())
    output = sandbox.commands.run(f"{python} {SCRIPT} {rounds}", timeout=300).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found
