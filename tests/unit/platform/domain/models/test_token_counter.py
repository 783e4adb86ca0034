"""Token counts of answers in each protocol, complete or in pieces of any size, and their cost."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from sandyard.kit.pacing import PIECES
from sandyard.kit.secret import Secret
from sandyard.platform.domain.models import token_counter
from sandyard.platform.domain.models.model import MAX_TOKENS, ModelApi, Price, Tokens, compute_cost, parse_price
from sandyard.platform.domain.models.redaction import Redactor, make_header_redactor
from sandyard.platform.domain.models.token_counter import TokenCounter


def sse(*events: Any) -> bytes:
    return b"".join(f"event: x\ndata: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"


ANTHROPIC = sse(
    {
        "type": "message_start",
        "message": {
            "usage": {
                "input_tokens": 5,
                "cache_creation_input_tokens": 20,
                "cache_read_input_tokens": 100,
                "output_tokens": 1,
            }
        },
    },
    {"type": "content_block_delta", "delta": {"text": 'not "usage": {"output_tokens": 999}'}},
    {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 42}},
)
RESPONSES = sse(
    {"type": "response.created", "response": {"usage": None}},
    {
        "type": "response.completed",
        "response": {"usage": {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 30}, "output_tokens": 9}},
    },
)
CHAT = sse(
    {"choices": [{"delta": {}}], "usage": None},
    {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2, "prompt_tokens_details": None}},
)
GEMINI = sse(
    {"usageMetadata": {"promptTokenCount": 12, "totalTokenCount": 12}},
    {
        "usageMetadata": {
            "promptTokenCount": 12,
            "candidatesTokenCount": 3,
            "thoughtsTokenCount": 4,
            "cachedContentTokenCount": 6,
        }
    },
)
STREAMS = [
    (ModelApi.ANTHROPIC, ANTHROPIC, Tokens(125, 42, 100, 20)),
    (ModelApi.OPENAI, RESPONSES, Tokens(50, 9, 30, None)),
    (ModelApi.OPENAI_CHAT, CHAT, Tokens(8, 2, None, None)),
    (ModelApi.GEMINI, GEMINI, Tokens(12, 7, 6, None)),
]


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(("kind", "stream", "tokens"), STREAMS)
async def test_counts_streams(kind: ModelApi, stream: bytes, tokens: Tokens, size: int) -> None:
    for text in (stream, stream.replace(b"\n", b"\r\n"), stream.removesuffix(b"\n\n")):
        counter = TokenCounter(kind, "text/event-stream; charset=utf-8")
        for start in range(0, len(text), size):
            await counter.feed(text[start : start + size])
        assert counter.get_result() == tokens


@pytest.mark.parametrize("size", [1, 3, 4, 1000])
async def test_estimates_streams_without_usage(size: int) -> None:
    """Also if the markers of events are split between chunks, and if there are few events for their size."""
    stream = b'data: {"choices": []}\n\n' * 10
    counter = TokenCounter(ModelApi.OPENAI_CHAT, "text/event-stream")
    for start in range(0, len(stream), size):
        await counter.feed(stream[start : start + size])
    assert counter.minimum == 10
    await counter.feed(b"x" * 100 * token_counter.STREAM_BYTES_PER_TOKEN)
    assert counter.minimum >= 100


async def test_counts_complete_answers() -> None:
    async def count_tokens(kind: ModelApi, body: Any) -> Tokens:
        counter = TokenCounter(kind, "application/json")
        await counter.feed(body if isinstance(body, bytes) else json.dumps(body).encode())
        return counter.get_result()

    usage = {"input_tokens": 3, "output_tokens": 4}
    assert await count_tokens(ModelApi.ANTHROPIC, {"usage": usage}) == Tokens(3, 4)
    assert await count_tokens(ModelApi.OPENAI, {"usage": usage}) == Tokens(3, 4)
    assert await count_tokens(ModelApi.OPENAI_CHAT, {"usage": {"prompt_tokens": 5}}) == Tokens(5)
    pieces = [{"usageMetadata": {"promptTokenCount": 1}}, {"usageMetadata": {"candidatesTokenCount": 2}}]
    assert await count_tokens(ModelApi.GEMINI, pieces) == Tokens(1, 2)
    for nonsense in (
        b"",
        b"hello",
        b'{"usage": 3}',
        b'{"usage": {"input_tokens": -1, "output_tokens": true}}',
        b"[" * 9999,
    ):
        assert await count_tokens(ModelApi.OPENAI, nonsense) == Tokens()


async def test_drops_large_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counter, "MAX_BYTES", 1000)
    counter = TokenCounter(ModelApi.OPENAI_CHAT, "text/event-stream")
    await counter.feed(b"data: " + b"x" * 5000)
    assert len(counter.stream.buffer) <= 1000
    await counter.feed(b'"usage"\n\n' + CHAT)
    assert counter.get_result() == Tokens(8, 2)


def test_costs_are_computed_from_prices_and_tokens() -> None:
    prices = {
        "a": {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75},
        "a-*": {"input": 1, "output": 1},
        "a-b*": {"input": 2, "output": 2},
    }
    assert parse_price(prices, "b") is None
    assert parse_price(prices, None) is None
    assert parse_price(prices, "a-c") == Price(input=1, output=1)
    assert parse_price(prices, "a-bc") == Price(input=2, output=2)
    assert compute_cost(parse_price(prices, "a"), Tokens(125, 42, 100, 20)) == round(
        5 * 3 + 42 * 15 + 100 * 0.3 + 20 * 3.75
    )
    assert compute_cost(parse_price(prices, "a-"), Tokens(10, 5, 4, 2)) == 15
    assert compute_cost(None, Tokens(1, 1)) is None
    assert compute_cost(Price(input=1, output=1), Tokens()) is None


@pytest.mark.parametrize("size", [1, 3, 50])
def test_redacts_key_in_pieces(size: int) -> None:
    key = "sk-sk-secret-1"
    text = f"a sk-sk-sk-secret-1 b {key}{key} sk-sk-".encode()
    redactor = Redactor(Secret(key))
    out = b"".join(redactor.feed(text[start : start + size]) for start in range(0, len(text), size)) + redactor.flush()
    assert out == text.replace(key.encode(), b"*" * len(key))
    assert len(out) == len(text)


async def test_does_not_store_empty_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counter, "MAX_BYTES", 256 << 10)
    counter = TokenCounter(ModelApi.OPENAI, "text/event-stream")
    for _ in range(20):
        await counter.feed(b"data:\n" * (token_counter.MAX_BYTES // 60))
    assert len(counter.stream.buffer) <= token_counter.MAX_BYTES
    await counter.feed(b"\n" + RESPONSES)
    assert counter.get_result().output is not None, "later events are counted"


async def test_many_events_do_not_delay_other_tasks() -> None:
    """Lines and events without usage are skipped, and those with usage are read in turns."""
    counter = TokenCounter(ModelApi.OPENAI_CHAT, "text/event-stream")
    began = time.process_time()
    for line in (b"\n", b"data:\n\n", b'data: {"usage": null}\n\n'):
        await counter.feed(line * ((4 << 20) // len(line)))
    assert time.process_time() - began < 1, "4 MiB of empty lines took 20 seconds"
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            await asyncio.sleep(0)
            others += 1

    counting_others = asyncio.ensure_future(count())
    await counter.feed(CHAT * 100)
    counting_others.cancel()
    assert others >= 100 // PIECES - 1
    assert counter.get_result() == Tokens(8, 2)


@pytest.mark.parametrize(
    "encoded",
    ['ab/cd"ef&gh', r"ab/cd\"ef&gh", r"ab\/cd\"ef&gh", r"ab/cd\"ef\u0026gh", "ab%2Fcd%22ef%26gh"],
    ids=["plain", "JSON", "escaped slash", "escaped for HTML", "URL"],
)
def test_encoded_secrets_are_redacted(encoded: str) -> None:
    assert Redactor(Secret('ab/cd"ef&gh')).redact(f"key={encoded}.") == "key=***."


HEADER_VALUES = [
    ("sid=the-secret-part; theme=dark", "sid=the-secret-part; theme=dark"),
    ("0123456789abcdef v1", "0123456789abcdef"),
    ("Bearer 0123456789abcdef", "0123456789abcdef"),
    ("basic dXNlcjp3b3Jk", "dXNlcjp3b3Jk"),
    ("Token 0123456789abcdef", "Token 0123456789abcdef"),
    ("sid=TOPSECRETTOPSECRET; theme=dark", "TOPSECRETTOPSECRET"),
]


@pytest.mark.parametrize(("value", "shown"), HEADER_VALUES)
def test_redacts_header_values(value: str, shown: str) -> None:
    text = f"before {shown} after"
    assert make_header_redactor([Secret(value)]).redact(text) == "before *** after"
    for size in (1, 3, 50):
        redactor = make_header_redactor([Secret(value)])
        pieces = [redactor.feed(text.encode()[start : start + size]) for start in range(0, len(text), size)]
        assert b"".join(pieces) + redactor.flush() == f"before {'*' * len(shown)} after".encode()


def test_drops_headers_named_after_secret() -> None:
    headers = [("x-request-id", "of Sk-Secret-1"), ("x-sk-secret-1-echo", "a"), ("X-SK-SECRET-1", "b")]
    assert Redactor(Secret("Sk-Secret-1")).redact_headers(headers) == [("x-request-id", "of ***")]


def test_redacts_ordinary_value_only_as_whole() -> None:
    """Parts of it may be ordinary words."""
    assert make_header_redactor([Secret("team blue-and-white")]).redact("blue-and-white") == "blue-and-white"
    assert make_header_redactor([Secret("short")]).redact("short") == "short"


def test_lines_pass_at_once_and_small_pieces_are_cheap() -> None:
    redactor = make_header_redactor([Secret(letter * 4000) for letter in "abcdefghijklmnopqrst"])
    assert redactor.feed(b"data: {}\n\n") == b"data: {}\n\n", "nothing is held back after the end of a line"
    began = time.process_time()
    for _ in range(2000):
        redactor.feed(b"a")
    assert time.process_time() - began < 5, "a search for every beginning of every value would take a minute"


async def test_limits_what_a_provider_reports() -> None:
    """With the highest price too, a row must be storable."""
    highest_price = Price(input=100_000, output=100_000)
    for kind, usage in (
        (ModelApi.OPENAI_CHAT, {"prompt_tokens": 1 << 53, "completion_tokens": 10**40}),
        (
            ModelApi.ANTHROPIC,
            dict.fromkeys(
                ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), 1 << 70
            ),
        ),
    ):
        counter = TokenCounter(kind, "application/json")
        await counter.feed(json.dumps({"usage": usage}).encode())
        tokens = counter.get_result()
        assert (tokens.input, tokens.output) == (MAX_TOKENS, MAX_TOKENS)
        assert max(tokens.cache_read or 0, tokens.cache_write or 0) <= MAX_TOKENS
        assert MAX_TOKENS < (compute_cost(highest_price, tokens) or 0) < 1 << 63
    assert (compute_cost(highest_price, Tokens(1 << 62, 1 << 62)) or 0) < 1 << 63
