"""Malformed data, made from valid samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st


def nest(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1 << 31, 1 << 63, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan")),
    *(
        "",
        " ",
        "\0",
        "\n",
        "\ud800",
        "é",
        "²",
        "٣",
        "-1",
        "0x1",
        "9" * 30,
        "1e999",
        "../..",
        "a" * 5000,
        "http://[",
        "[::1",
    ),
    *("2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "sha256:" + "a" * 64),
    *([], {}, [[]], [{}], [None], [0], ["", ""], {"": ""}, {"a": None}, [1] * 300, nest(120), nest(500)),
)
"""Values that a parser may not expect at some place of a document."""
TOKENS = (
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\r",
        b"\t",
        b" ",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xc2\xb2",
        b"\xd9\xa3",
        b"\xe2\x80\xa8",
    ),
    *(
        b"-1",
        b"0",
        b"9" * 25,
        b"1e999",
        b"NaN",
        b'"',
        b'\\"',
        b"\\u0000",
        b"\\ud800",
        b"{",
        b"}",
        b"[",
        b"]",
        b"[[[[",
        b"{}",
    ),
    *(
        b",",
        b":",
        b";",
        b"=",
        b"..",
        b"/",
        b"//",
        b"/*",
        b"%00",
        b"%",
        b"&",
        b"<",
        b">",
        b"@",
        b"*",
        b"-",
        b"--",
        b"#",
        b"|",
    ),
)
"""Pieces that have a meaning in some format."""


def replace_each_value(document: Any) -> Iterator[Any]:
    """Yield copies of a document in which one value is replaced by something else, is missing, or is there twice."""
    yield from JUNK
    if isinstance(document, dict):
        for key, value in document.items():
            yield {name: other for name, other in document.items() if name != key}
            for variant in replace_each_value(value):
                yield {**document, key: variant}
    elif isinstance(document, list):
        yield document * 2
        for at, value in enumerate(document):
            for variant in replace_each_value(value):
                yield [*document[:at], variant, *document[at + 1 :]]


def encode(document: Any) -> bytes:
    """Encode a document in the way of a hostile sender, with what is not valid JSON."""
    return json.dumps(document).encode()


@st.composite
def mutated(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Return a sample in which pieces are replaced, removed, inserted or repeated, and which may be cut off."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, 4))):
        at, size = draw(st.integers(0, len(data))), draw(st.integers(0, 16))
        source = draw(st.integers(0, len(data)))
        own = st.just(bytes(data[source : source + 16]))
        piece = draw(st.one_of(st.sampled_from(TOKENS), own, st.binary(max_size=8)))
        data[at : at + size] = piece * draw(st.sampled_from((1, 1, 1, 2, 40)))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


def repeat(sample: bytes, size: int) -> Iterator[bytes]:
    """Yield long inputs: a beginning of the sample, and then the same piece until there are `size` bytes."""
    pieces = {
        *TOKENS,
        sample,
        sample[: len(sample) // 2],
        *(sample[at : at + 12] for at in range(0, min(len(sample), 240), 12)),
    }
    for piece in sorted(pieces - {b""}):
        for start in (b"", sample[: len(sample) // 2], sample):
            yield start + piece * (size // len(piece))
