from __future__ import annotations

import pytest

from sandyard.platform.domain.repositories.errors import RepositoryInvalidError
from sandyard.platform.domain.repositories.remote import parse_remote


@pytest.mark.parametrize(
    ("address", "kind", "url", "slug", "name", "key", "web"),
    [
        (
            "https://GitHub.com/Acme/Website.git/",
            "http",
            "https://github.com/Acme/Website.git",
            "Acme/Website",
            "Website",
            "github.com/acme/website",
            "https://github.com/Acme/Website",
        ),
        (
            "https://github.com:443//acme/website",
            "http",
            "https://github.com/acme/website",
            "acme/website",
            "website",
            "github.com/acme/website",
            "https://github.com/acme/website",
        ),
        (
            "http://127.0.0.1:8080/group/sub/it.git",
            "http",
            "http://127.0.0.1:8080/group/sub/it.git",
            None,
            "it",
            "127.0.0.1:8080/group/sub/it",
            "http://127.0.0.1:8080/group/sub/it",
        ),
        (
            "git@github.com:acme/website.git",
            "ssh",
            "git@github.com:acme/website.git",
            "acme/website",
            "website",
            "github.com/acme/website",
            "https://github.com/acme/website",
        ),
        ("host:/srv/git/x.git", "ssh", "host:/srv/git/x.git", None, "x", "host/srv/git/x", "https://host/srv/git/x"),
        (
            "ssh://git@[::1]:2222/acme/x.git",
            "ssh",
            "ssh://git@[::1]:2222/acme/x.git",
            "acme/x",
            "x",
            "ssh:[::1]:2222/acme/x",
            "https://[::1]/acme/x",
        ),
        ("file:///srv/git/x.git", "local", "/srv/git/x.git", None, "x", "local:/srv/git/x", None),
        ("/srv//with space/x/.git", "local", "/srv/with space/x/.git", None, "x", "local:/srv/with space/x/", None),
    ],
)
def test_parses_address(
    address: str, kind: str, url: str, slug: str | None, name: str, key: str, web: str | None
) -> None:
    remote = parse_remote(f" {address}\n")
    assert (remote.kind, remote.url, remote.slug, remote.name, remote.key, remote.web_url) == (
        *(kind, url, slug, name, key, web),
    )


def test_equivalent_addresses_have_same_key() -> None:
    addresses = (
        "https://github.com/a/b",
        "https://GITHUB.com/A/b.git",
        "git@github.com:a/b.git",
        "ssh://git@github.com/a/b",
    )
    assert len({parse_remote(address).key for address in addresses}) == 1


def test_another_port_is_another_repository() -> None:
    """Otherwise an unrelated project could hold the lock of this one."""
    addresses = (
        *("https://host/a/b", "https://host:8443/a/b", "http://host:8080/a/b"),
        *("ssh://git@host:2222/a/b", "ssh://git@host:443/a/b", "ssh://git@host:8443/a/b"),
    )
    assert len({parse_remote(address).key for address in addresses}) == len(addresses)
    usual = ("https://host:443/a/b", "http://host:80/a/b", "ssh://git@host:22/a/b", "git@host:a/b")
    assert {parse_remote(address).key for address in usual} == {"host/a/b"}


@pytest.mark.parametrize(
    "address",
    [
        *("", "  ", "website", "acme/website", "./x", "../x", "file://host/x", "/", "ext::sh -c id", "ext::sh"),
        *("git://github.com/a/b", "ftp://h/a", "https://", "https://host", "https://host/", "https:///a/b"),
        *("https://host/a b", "https://host/a?x=1", "https://host/a#x", "https://host:0/a", "https://host:99999/a"),
        *("https://ho_st/a", "ssh://-oProxyCommand=id/a", "-oProxyCommand=id:a", "git@-x:a/b", "ssh://h/-x", "h:-x"),
        *("https://host/../a", "host:a/../../b", "https://host/a\nb", "/a\nb", "\\\\host\\a", "https://host/.git"),
        "https://host/" + "a" * 3000,
    ],
)
def test_rejects_invalid_address(address: str) -> None:
    with pytest.raises(RepositoryInvalidError) as error:
        parse_remote(address)
    assert error.value.message.endswith(".")


@pytest.mark.parametrize(
    "address", ["https://ada:hunter2@host/a/b", "https://hunter2@host/a/b", "ssh://ada:hunter2@host/a/b"]
)
def test_rejects_password_without_echoing_it(address: str) -> None:
    with pytest.raises(RepositoryInvalidError) as error:
        parse_remote(address)
    assert "Remove the" in error.value.message
    assert "hunter2" not in error.value.message


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        *(("https://host/a", True), ("http://host/a", False), ("http://127.0.0.1.example.com/a", False)),
        *(("http://127.0.0.1:1/a", True), ("http://localhost/a", True), ("http://[::1]/a", True), ("h:a", True)),
    ],
)
def test_is_safe_from_interception(address: str, safe: bool) -> None:
    assert parse_remote(address).is_safe_from_interception is safe
