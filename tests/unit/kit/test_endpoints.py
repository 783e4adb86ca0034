from __future__ import annotations

import pytest

from sandyard.kit.endpoints import format_endpoint, make_local_url


@pytest.mark.parametrize(
    ("host", "endpoint", "url"),
    [
        ("192.0.2.1", "192.0.2.1:80", "http://192.0.2.1:80"),
        ("2001:db8::1", "[2001:db8::1]:80", "http://[2001:db8::1]:80"),
        ("0.0.0.0", "0.0.0.0:80", "http://127.0.0.1:80"),
        ("::", "[::]:80", "http://[::1]:80"),
    ],
)
def test_formats_addresses(host: str, endpoint: str, url: str) -> None:
    assert format_endpoint(host, 80) == endpoint
    assert make_local_url(host, 80) == url
