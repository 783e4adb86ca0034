"""Malformed data leads to a result or to an error that its reader expects, and takes no time.

Never to another exception, to endless work, or to work that grows with the square of the input.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.proof.record import record
from tests.unit.fuzzing.documents import DOCUMENTS
from tests.unit.fuzzing.inputs import mutated, repeat, replace_each_value
from tests.unit.fuzzing.parsers import PARSERS

T = TypeVar("T")
EXAMPLES = int(os.environ.get("SANDYARD_FUZZ_EXAMPLES", "0"))
"""How many random inputs each parser gets. 0: a few, which are always the same."""
MAX_S = 1.0
"""Processor time that one input may take."""
PROFILE = settings(
    max_examples=EXAMPLES or 30,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    phases=(Phase.generate, *((Phase.shrink,) if EXAMPLES else ())),
    suppress_health_check=list(HealthCheck),
)


def check(parse: Callable[[T], object], data: T, errors: tuple[type[Exception], ...]) -> None:
    started = time.thread_time()
    with contextlib.suppress(*errors):
        parse(data)
    assert time.thread_time() - started < MAX_S


@pytest.mark.parametrize("name", PARSERS)
def test_malformed_bytes(name: str) -> None:
    parser = PARSERS[name]
    for sample in parser.samples:
        check(parser.parse, sample, parser.errors)

    @PROFILE
    @given(mutated(parser.samples))
    def parse(data: bytes) -> None:
        check(parser.parse, data, parser.errors)

    parse()
    record({"parsers": 1, "random inputs": PROFILE.max_examples})


@pytest.mark.parametrize("name", PARSERS)
def test_long_bytes(name: str) -> None:
    parser = PARSERS[name]
    for sample in parser.samples:
        for data in repeat(sample, parser.largest * (8 if EXAMPLES else 1)):
            check(parser.parse, data, parser.errors)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_with_unexpected_values(name: str) -> None:
    parser = DOCUMENTS[name]
    for sample in parser.samples:
        parser.parse(sample)  # is valid
        for document in replace_each_value(sample):
            check(parser.parse, document, parser.errors)
    record({"parsers": 1})
