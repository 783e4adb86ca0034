"""Host names of previews."""

from __future__ import annotations

from typing import Any

import pytest

from sandyard.kit.errors import InvalidInputError, UnsupportedError
from sandyard.platform.domain.previews.addresses import (
    Addresses,
    PreviewPort,
    check_path,
    check_port,
    list_frame_sources,
    require_addresses,
)
from sandyard.platform.settings import PlatformSettings

PREVIEW = PreviewPort("sbx_00mwhnkzb5gfh26ygacc", 3000)
LABEL = "3000-00mwhnkzb5gfh26ygacc"


def load_settings(**given: Any) -> PlatformSettings:
    return PlatformSettings.load({}, **given)


@pytest.mark.parametrize(
    ("given", "url", "frames"),
    [
        ({}, f"http://{LABEL}.localhost:8700/", "http://*.localhost:8700"),
        ({"port": 9000}, f"http://{LABEL}.localhost:9000/", "http://*.localhost:9000"),
        ({"public_url": "http://localhost:8800"}, f"http://{LABEL}.localhost:8800/", "http://*.localhost:8800"),
        (
            {"public_url": "https://yard.example.com", "preview_domain": "Previews.example.net"},
            f"https://{LABEL}.previews.example.net/",
            "https://*.previews.example.net",
        ),
        (
            {"public_url": "https://yard.example.com:8443", "preview_domain": "example.net"},
            f"https://{LABEL}.example.net:8443/",
            "https://*.example.net:8443",
        ),
        (
            {"public_url": "https://yard.example.com", "preview_domain": "example.net:444"},
            f"https://{LABEL}.example.net:444/",
            "https://*.example.net:444",
        ),
        ({"preview_domain": "yard.lan"}, f"http://{LABEL}.yard.lan:8700/", "http://*.yard.lan:8700"),
    ],
)
def test_addresses_and_frame_sources_depend_on_the_public_url_and_the_preview_domain(
    given: dict[str, Any], url: str, frames: str
) -> None:
    addresses = require_addresses(Addresses.from_settings(load_settings(**given)))
    assert addresses.make_url(PREVIEW) == url
    assert list_frame_sources(load_settings(**given)) == frames
    name = addresses.make_host(PREVIEW).partition(":")[0]
    for spelled in (name, f"{name}."):
        assert addresses.is_preview_host(spelled)
        assert addresses.parse_host(spelled) == PREVIEW


def test_previews_are_unsupported_with_a_public_url_but_no_preview_domain() -> None:
    public = load_settings(public_url="https://yard.example.com")
    assert Addresses.from_settings(public) is None
    assert list_frame_sources(public) == "'none'"
    with pytest.raises(UnsupportedError, match="SANDYARD_PREVIEW_DOMAIN"):
        require_addresses(Addresses.from_settings(public))


def test_the_platform_may_be_below_the_preview_domain() -> None:
    addresses = require_addresses(
        Addresses.from_settings(load_settings(public_url="https://yard.example.com", preview_domain="example.com"))
    )
    assert not addresses.is_preview_host("yard.example.com")
    assert not addresses.is_preview_host("example.com")
    assert not addresses.is_preview_host("badexample.com")
    assert addresses.is_preview_host("other.example.com")
    assert addresses.parse_host("other.example.com") is None


@pytest.mark.parametrize(
    "label",
    [
        "0-abc",
        "03000-abc",
        "65536-abc",
        "99999-abc",
        "49983-abc",
        "3000-",
        "3000",
        "abc",
        "3000-a_b",
        "3000-a.b",
        "-3000-a",
        "3000-ä",
    ],
)
def test_ignores_unknown_names(label: str) -> None:
    assert require_addresses(Addresses.from_settings(load_settings())).parse_host(f"{label}.localhost") is None


@pytest.mark.parametrize(
    ("origin", "same"),
    [
        (f"http://{LABEL}.localhost:8700", True),
        ("http://8000-00mwhnkzb5gfh26ygacc.localhost:8700", True),
        ("http://3000-other.localhost:8700", False),
        (f"https://{LABEL}.localhost:8700", False),
        ("http://localhost:8700", False),
        ("http://127.0.0.1:8700", False),
        ("null", False),
        ("", False),
        (f"http://{LABEL}.localhost.evil.com", False),
        (f"http://evil.com/{LABEL}.localhost", False),
    ],
)
def test_same_sandbox(origin: str, same: bool) -> None:
    assert require_addresses(Addresses.from_settings(load_settings())).is_same_sandbox(origin, PREVIEW) is same


@pytest.mark.parametrize(
    ("given", "origins"),
    [
        ({}, ("http://127.0.0.1:8700", "http://localhost:8700")),
        ({"host": "localhost", "port": 9000}, ("http://localhost:9000", "http://127.0.0.1:9000")),
        (
            {"public_url": "https://Yard.example.com:8443/", "preview_domain": "a.b"},
            ("https://yard.example.com:8443", "http://localhost:8700", "http://127.0.0.1:8700"),
        ),
        (
            {"host": "0.0.0.0", "public_url": "https://yard.example.com", "preview_domain": "a.b"},
            ("https://yard.example.com",),
        ),
        ({"host": "10.1.2.3"}, ("http://10.1.2.3:8700", "http://localhost:8700", "http://127.0.0.1:8700")),
        ({"host": "::"}, ("http://localhost:8700", "http://127.0.0.1:8700")),
        ({"host": "::1"}, ()),
    ],
)
def test_origins_of_the_platform(given: dict[str, Any], origins: tuple[str, ...]) -> None:
    assert require_addresses(Addresses.from_settings(load_settings(**given))).platform_origins == origins


@pytest.mark.parametrize("domain", ["", "a b", "http://a.b", "a..b", "-a.b", "a.b:0", "a.b/c", "*.a.b"])
def test_rejects_invalid_domains(domain: str) -> None:
    with pytest.raises(InvalidInputError, match="preview_domain"):
        load_settings(preview_domain=domain)


def test_ports_and_paths() -> None:
    for port in (1, 3000, 65535):
        check_port(port)
    for port in (0, -1, 65536, 49983):
        with pytest.raises(InvalidInputError):
            check_port(port)
    for path in ("/", "/a/b?c=d&e=%20", "//a"):
        assert check_path(path) == path
    for path in ("", "a", "http://a", "/a b", "/a\\b", "/a#b", "/ä", "/a\nb", "/\x00"):
        with pytest.raises(InvalidInputError):
            check_path(path)
