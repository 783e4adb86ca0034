from __future__ import annotations

import gzip

import httpx
import pytest

from sandyard.kit.encodings import COMPRESSIONS, accept_encodings


def client(encoding: str, *accepted: str) -> httpx.AsyncClient:
    body = gzip.compress(gzip.compress(b"x" * 1000)) if "," in encoding else gzip.compress(b"x" * 1000)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": encoding}, stream=httpx.ByteStream(body))

    return httpx.AsyncClient(transport=httpx.MockTransport(answer), event_hooks=accept_encodings(*accepted))


async def test_one_encoding_is_decoded_where_it_is_accepted() -> None:
    async with client("gzip", *COMPRESSIONS) as asking:
        assert (await asking.get("http://a/")).content == b"x" * 1000
    async with client("identity") as asking:
        assert gzip.decompress((await asking.get("http://a/")).content) == b"x" * 1000


@pytest.mark.parametrize(
    ("encoding", "accepted"), [("gzip", ()), ("gzip, gzip", COMPRESSIONS), ("GZIP,br", COMPRESSIONS)]
)
async def test_others_are_not_decoded(encoding: str, accepted: tuple[str, ...]) -> None:
    async with client(encoding, *accepted) as asking:
        with pytest.raises(httpx.DecodingError, match="encoding"):
            await asking.get("http://a/")
