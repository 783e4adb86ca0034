"""The files in deploy/proxy. tests/acceptance/test_proxies.py runs them."""

from __future__ import annotations

import re
from pathlib import Path

NGINX = Path(__file__).parents[2] / "deploy/proxy/nginx.conf"
DESCRIBES_CLIENT = {"X-Forwarded-For": "$remote_addr", "X-Forwarded-Host": "$http_host", "X-Forwarded-Proto": "$scheme"}


def test_nginx_replaces_what_clients_say_about_themselves() -> None:
    """The platform and the engine believe a proxy on their machine, and nginx passes on headers that it does not set."""
    locations = re.findall(r"^    location / \{\n(.*?)^    \}", NGINX.read_text(), re.MULTILINE | re.DOTALL)
    assert len(locations) == 3
    for location in locations:
        headers = dict(re.findall(r"proxy_set_header (\S+)\s+(\S+);", location))
        assert headers.items() >= DESCRIBES_CLIENT.items(), location
