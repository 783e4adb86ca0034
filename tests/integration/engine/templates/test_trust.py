from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from sandyard.engine.templates.trust import BUNDLE, Trust, is_safe, read_trust, write_layer
from tests.unit.engine.templates.conftest import Put


def certificate(name: str, width: int = 64) -> str:
    """Return text that looks like a certificate; nothing here reads its content."""
    body = base64.b64encode(hashlib.sha512(name.encode()).digest() * 5).decode()
    lines = [body[i : i + width] for i in range(0, len(body), width)]
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----"])


def test_a_plain_machine_has_nothing_to_carry_over(machine: Path, put: Put) -> None:
    put("usr/share/ca-certificates/mozilla/a.crt", certificate("a"))
    put(BUNDLE[1:], certificate("a", width=76))
    trust = read_trust(machine, {})
    assert trust == Trust()
    assert trust.is_empty


def test_added_authorities_are_carried_over_from_the_anchors_and_the_bundle(machine: Path, put: Put) -> None:
    put("usr/share/ca-certificates/mozilla/a.crt", certificate("a"))
    put("usr/local/share/ca-certificates/corp.crt", f"a comment\n{certificate('corp')}\n")
    put(BUNDLE[1:], "\n".join([certificate("a"), certificate("corp"), certificate("only-in-bundle")]))
    trust = read_trust(machine, {})
    assert set(trust.certificates) == {certificate("corp"), certificate("only-in-bundle")}
    assert trust.env["NODE_EXTRA_CA_CERTS"] == trust.env["DENO_CERT"] == trust.env["SSL_CERT_FILE"] == BUNDLE


def test_the_bundle_is_ignored_when_the_list_of_packaged_authorities_is_missing(machine: Path, put: Put) -> None:
    put(BUNDLE[1:], certificate("a"))
    assert read_trust(machine, {}).certificates == ()


def test_private_keys_are_not_carried_over(machine: Path, put: Put) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"
    put("usr/local/share/ca-certificates/both.pem", f"{key}\n{certificate('corp')}")
    put("usr/local/share/ca-certificates/hidden.crt", certificate("hidden"), mode=0o600)
    trust = read_trust(machine, {})
    assert trust.certificates == (certificate("corp"),)


def test_settings_of_pip_npm_and_apt_are_carried_over_without_secrets(machine: Path, put: Put) -> None:
    put(
        "etc/pip.conf",
        "[global]\nindex-url = https://me:hunter2@pypi.corp.example/simple\n"
        "extra-index-url =\n  https://more.corp.example/simple\n  https://tok:en@other.example/simple\n"
        "cert = /opt/corp/ca.pem\nfind-links = /opt/wheels\n[install]\ntrusted-host = pypi.corp.example\n",
    )
    put(
        "usr/local/etc/npmrc",
        "registry=https://npm.corp.example/\n//npm.corp.example/:_authToken=hunter2\n_auth=aHVudGVyMg==\n"
        "@corp:registry=https://corp.example/npm/\nproxy=http://127.0.0.1:3128\n; a comment=1\ncafile=/opt/ca.pem\n",
    )
    put(
        "etc/apt/apt.conf.d/99proxy",
        'Acquire::http::Proxy "http://proxy.corp.example:3128";\n'
        'Acquire::https::Proxy "http://me:hunter2@proxy.corp.example";\n'
        'Acquire::Retries "3";\nAPT::Install-Recommends "false";\n',
    )
    trust = read_trust(machine, {})
    assert dict(trust.pip) == {
        "cert": BUNDLE,
        "extra-index-url": "https://more.corp.example/simple",
        "trusted-host": "pypi.corp.example",
    }
    assert dict(trust.npm) == {
        "registry": "https://npm.corp.example/",
        "@corp:registry": "https://corp.example/npm/",
        "cafile": BUNDLE,
    }
    assert dict(trust.apt) == {"Acquire::http::Proxy": "http://proxy.corp.example:3128", "Acquire::Retries": "3"}
    assert {"pip: index-url", "pip: extra-index-url", "npm: _auth", "npm: proxy", "apt: Acquire::https::Proxy"} <= set(
        trust.left_out
    )
    assert "hunter2" not in repr(trust)
    assert "aHVudGVyMg" not in repr(trust)


def test_files_that_are_not_world_readable_are_ignored(machine: Path, put: Put) -> None:
    put("etc/pip.conf", "[global]\nindex-url = https://pypi.corp.example/s3cr3t/simple\n", mode=0o600)
    put("etc/npmrc", "registry=https://npm.corp.example/\n", mode=0o640)
    assert read_trust(machine, {}).is_empty


def test_proxy_variables_are_carried_over_unless_they_are_private_or_local(machine: Path) -> None:
    environ = {
        "http_proxy": "http://proxy.corp.example:3128",
        "HTTPS_PROXY": "http://me:hunter2@proxy.corp.example:3128",
        "all_proxy": "socks5://localhost:1080",
        "no_proxy": "localhost,127.0.0.1,.corp.example",
        "HOME": "/root",
        "API_TOKEN": "hunter2",
    }
    trust = read_trust(machine, environ)
    assert trust.env == {"http_proxy": environ["http_proxy"], "no_proxy": environ["no_proxy"]}


@pytest.mark.parametrize(
    "value",
    [
        "https://user@host/",
        "https://host/?key=1",
        "http://[::1]:80/",
        "http://127.0.0.53/",
        "file:///opt/x",
        "/opt/x",
        "a'b",
        'a";b',
        "$(id)",
        "https://host/token/abc",
        "a\nb",
    ],
)
def test_unsafe_values_are_never_carried_over(value: str) -> None:
    assert not is_safe(value)


def test_the_layer_extends_the_bundle_and_keeps_owners_and_modes(machine: Path, put: Put, tmp_path: Path) -> None:
    put("usr/local/share/ca-certificates/corp.crt", certificate("corp"))
    put("usr/local/etc/npmrc", "registry=https://npm.corp.example/\n")
    template, layer = tmp_path / "template", tmp_path / "layer"
    (template / "etc/ssl/certs").mkdir(parents=True)
    (template / "usr/local/etc").mkdir(parents=True)
    (template / "usr/local").chmod(0o775)
    if os.geteuid() == 0:
        os.chown(template / "usr/local", 1000, 1000)
    (template / BUNDLE[1:]).write_text(certificate("public") + "\n")
    trust = read_trust(machine, {})
    write_layer(trust, template, layer)

    bundle = (layer / BUNDLE[1:]).read_text()
    assert certificate("public") in bundle
    assert certificate("corp") in bundle
    assert (layer / "usr/local/etc/npmrc").read_text() == "registry=https://npm.corp.example/\n"
    assert "export SSL_CERT_FILE=" in (layer / "etc/profile.d/host-trust.sh").read_text()
    layer_status, template_status = (layer / "usr/local").stat(), (template / "usr/local").stat()
    assert (layer_status.st_mode, layer_status.st_uid, layer_status.st_gid) == (
        template_status.st_mode,
        template_status.st_uid,
        template_status.st_gid,
    )


def test_the_digest_depends_only_on_what_is_carried_over() -> None:
    trust = Trust(pip=(("timeout", "5"),))
    assert trust.digest == Trust(pip=(("timeout", "5"),), left_out=("pip: index-url",)).digest
    assert trust.digest != Trust(pip=(("timeout", "6"),)).digest
