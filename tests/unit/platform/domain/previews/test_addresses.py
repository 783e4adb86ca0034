"""Host names of previews."""

from __future__ import annotations

from typing import Any

import pytest

from sandyard.kit.errors import InvalidInputError, UnsupportedError
from sandyard.platform.domain.previews.addresses import (
    Addresses,
    Place,
    check_path,
    check_port,
    list_frame_sources,
    required,
)
from sandyard.platform.settings import PlatformSettings

PLACE = Place("sbx_00mwhnkzb5gfh26ygacc", 3000)
LABEL = "3000-00mwhnkzb5gfh26ygacc"


def settings(**given: Any) -> PlatformSettings:
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
def test_addresses_and_frame_sources(given: dict[str, Any], url: str, frames: str) -> None:
    addresses = required(Addresses.of(settings(**given)))
    assert addresses.url(PLACE) == url
    assert list_frame_sources(settings(**given)) == frames
    name = addresses.host(PLACE).partition(":")[0]
    for spelled in (name, f"{name}."):
        assert addresses.below(spelled)
        assert addresses.place(spelled) == PLACE


def test_public_url_without_preview_domain() -> None:
    public = settings(public_url="https://yard.example.com")
    assert Addresses.of(public) is None
    assert list_frame_sources(public) == "'none'"
    with pytest.raises(UnsupportedError, match="SANDYARD_PREVIEW_DOMAIN"):
        required(Addresses.of(public))


def test_platform_may_be_below_preview_domain() -> None:
    addresses = required(Addresses.of(settings(public_url="https://yard.example.com", preview_domain="example.com")))
    assert not addresses.below("yard.example.com")
    assert not addresses.below("example.com")
    assert not addresses.below("badexample.com")
    assert addresses.below("other.example.com")
    assert addresses.place("other.example.com") is None


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
    assert required(Addresses.of(settings())).place(f"{label}.localhost") is None


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
    assert required(Addresses.of(settings())).of_same_sandbox(origin, PLACE) is same


@pytest.mark.parametrize("domain", ["", "a b", "http://a.b", "a..b", "-a.b", "a.b:0", "a.b/c", "*.a.b"])
def test_rejects_invalid_domains(domain: str) -> None:
    with pytest.raises(InvalidInputError, match="preview_domain"):
        settings(preview_domain=domain)


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
