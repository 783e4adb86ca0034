from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.engine.templates.sources import Release, Source, read_release, read_sources, strip_credentials
from sandyard.kit.errors import UnsupportedError
from tests.unit.engine.templates.conftest import Put

BOOKWORM = Release("debian", "bookworm", "Debian 12")
DEB822 = """\
# the archive
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
# a comment inside
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://vendor.example/apt
Suites: bookworm
Components: main
Signed-By: /etc/apt/keyrings/vendor.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""


def test_only_the_distributions_own_archives_of_this_release_are_used(machine: Path, put: Put) -> None:
    put("etc/apt/sources.list.d/debian.sources", DEB822)
    keyring = (("signed-by", "/usr/share/keyrings/debian-archive-keyring.gpg"),)
    expected = Source("http://mirror.example/debian", ("bookworm", "bookworm-updates"), ("main",), keyring)
    assert read_sources(BOOKWORM, machine) == [expected]


def test_one_line_sources_are_read_with_and_without_options(machine: Path, put: Put) -> None:
    lines = [
        "deb [arch=amd64 signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg]"
        " http://a.example/ubuntu jammy main universe multiverse",
        "deb http://b.example/ubuntu jammy-security main # comment",
        "deb-src http://b.example/ubuntu jammy main",
        "#deb http://c.example/ubuntu jammy main",
        "deb http://b.example/ubuntu focal main",
    ]
    put("etc/apt/sources.list", "\n".join(lines))
    parsed_sources = read_sources(Release("ubuntu", "jammy", "Ubuntu 22.04"), machine)
    assert [(s.uri, s.suites, s.components) for s in parsed_sources] == [
        ("http://a.example/ubuntu", ("jammy",), ("main", "universe")),
        ("http://b.example/ubuntu", ("jammy-security",), ("main",)),
    ]
    assert parsed_sources[0].keyring == "/usr/share/keyrings/ubuntu-archive-keyring.gpg"


def test_a_mirror_with_its_own_key_is_used_when_there_is_no_other(machine: Path, put: Put) -> None:
    put("etc/apt/sources.list", "deb [signed-by=/etc/apt/keyrings/corp.gpg] http://corp.example/debian bookworm main")
    assert [s.uri for s in read_sources(BOOKWORM, machine)] == ["http://corp.example/debian"]


def test_a_release_without_sources_is_reported(machine: Path, put: Put) -> None:
    put("etc/apt/sources.list", "deb http://a.example/debian trixie main")
    with pytest.raises(UnsupportedError, match="no source for bookworm"):
        read_sources(BOOKWORM, machine)


def test_a_key_inside_the_stanza_survives_the_round_trip(machine: Path, put: Put) -> None:
    key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abcd\n -----END PGP PUBLIC KEY BLOCK-----"
    stanza = f"Types: deb\nURIs: http://a.example/debian\nSuites: bookworm\nComponents: main\nSigned-By:\n {key}\n"
    put("etc/apt/sources.list.d/a.sources", stanza)
    [source] = read_sources(BOOKWORM, machine)
    assert source.format_stanza() == stanza


def test_credentials_of_a_mirror_are_removed() -> None:
    source = Source("https://me:hunter2@mirror.example:8443/debian", ("bookworm",), ("main",))
    assert strip_credentials(source).uri == "https://mirror.example:8443/debian"
    assert "hunter2" not in strip_credentials(source).format_stanza()


def test_the_release_is_read_and_unsupported_ones_are_rejected_by_name(machine: Path, put: Put) -> None:
    put("etc/os-release", 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_CODENAME=bookworm\n')
    assert read_release(machine) == Release("debian", "bookworm", "Debian GNU/Linux 12 (bookworm)")
    put("etc/os-release", 'PRETTY_NAME="Fedora 44"\nID=fedora\n')
    with pytest.raises(UnsupportedError, match="this is Fedora 44"):
        read_release(machine)
