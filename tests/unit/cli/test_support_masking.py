"""A support bundle replaces secrets and personal data, and keeps the rest."""

from __future__ import annotations

import pytest

from sandyard.cli.support.masking import SecretMask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("git clone https://maria:hunter2@git.example/x.git", "git clone https://***@git.example/x.git"),
        ("postgresql://u:p%40ss@db/sandyard", "postgresql://***@db/sandyard"),
        ("Authorization: Bearer abc.def-123", "Authorization: *** ***"),
        ("sent bearer abcdef123456", "sent bearer ***"),
        ("admin token: sy_abcdefgh12345678", "admin token: ***"),
        ("key e2b_0123456789abcdef0123", "key ***"),
        ("sandyard host join syj_WyIxMC4wLjAuMTozMDEwIl0", "sandyard host join ***"),
        ("ghp_abcdefghijklmnop and github_pat_11AAAAAAA_bbbbbb", "*** and ***"),
        ("sk-ant-api03-abcdefgh and AKIAABCDEFGHIJKLMNOP", "*** and ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def", "***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nafter", "***\nafter"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "***"),
        ("AGE-SECRET-KEY-1QQQQQQ", "***"),
        ("password=hunter2, user=maria", "password=***, user=maria"),
        ('{"api_key": "a \\" b", "model": "x"}', '{"api_key": ***, "model": "x"}'),
        ("X-Api-Key: 12345", "X-Api-Key: ***"),
        ("a" * 64, "***"),
        ("1" * 40 + " is a commit", "1" * 40 + " is a commit"),
        ("sandbox_created sandbox=ses_01 ms=2.1", "sandbox_created sandbox=ses_01 ms=2.1"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert SecretMask([]).apply(text) == masked


def test_known_secrets_are_masked_in_every_form() -> None:
    mask = SecretMask(
        [
            "plain value/1",
            '{"token": "from json", "n": 1}',
            "-----BEGIN X-----\nline with thirty characters..\n-----END X-----",
            "ab",
        ]
    )
    text = "plain value/1 plain%20value%2F1 cGxhaW4gdmFsdWUvMQ from json; line with thirty characters.. abc"
    assert mask.apply(text) == "*** *** *** ***; *** abc"


def test_documents_keep_their_form() -> None:
    document = {
        "api_tokens": {"active": 2},
        "token": "x",
        "password": "",
        "list": ["ghp_abcdefghijk", 3],
        "url": "http://a:b@c/",
    }
    assert SecretMask([]).apply_to_document(document) == {
        "api_tokens": {"active": 2}, "token": "***", "password": "", "list": ["***", 3], "url": "http://***@c/",
    }  # fmt: skip
