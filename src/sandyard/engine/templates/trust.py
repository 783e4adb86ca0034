"""The machine's settings for reaching its package registries, as a thin layer on top of a template: extra certificate
authorities and the settings of apt, pip and npm. Without it every install in a sandbox fails behind a network that
intercepts TLS.

The layer contains only public data:
- only files that every user of the machine may read, never one from a home directory;
- only settings on an allowlist, and never a value that contains a user name, a password or a token;
- only the certificates from certificate files.
An address on the machine's own loopback is left out too, because it means something else inside a sandbox.
"""

from __future__ import annotations

import configparser
import hashlib
import ipaddress
import json
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
ANCHORS = (
    "usr/local/share/ca-certificates",
    "etc/pki/ca-trust/source/anchors",
    "etc/ca-certificates/trust-source/anchors",
)
HOST_BUNDLES = (BUNDLE.lstrip("/"), "etc/pki/tls/certs/ca-bundle.crt")
PUBLIC_AUTHORITIES = "usr/share/ca-certificates"
PIP_FILES = ("etc/pip.conf", "etc/xdg/pip/pip.conf")
NPM_FILES = ("etc/npmrc", "usr/etc/npmrc", "usr/local/etc/npmrc")
PIP_SETTINGS = frozenset({"index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries", "cert"})
NPM_SETTINGS = frozenset(
    {
        "registry",
        "proxy",
        "https-proxy",
        "noproxy",
        "strict-ssl",
        "cafile",
        "fetch-retries",
        "fetch-timeout",
        "maxsockets",
    }
)
APT_SETTING = re.compile(
    r"^Acquire::(?:(?:http|https|ftp)::(?:Proxy|Timeout|CaInfo|Verify-Peer|Verify-Host)(?:::[\w.-]+)?"
    r"|Retries|ForceIPv[46]|Check-Valid-Until)$",
    re.IGNORECASE,
)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_BUNDLE_ENV = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "DENO_CERT"), BUNDLE)
"""For programs that have their own authorities."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\s+[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class Trust:
    """The settings to add. `left_out` lists the names, without values, of settings that were found but not added."""

    certificates: tuple[str, ...] = ()
    apt: tuple[tuple[str, str], ...] = ()
    pip: tuple[tuple[str, str], ...] = ()
    npm: tuple[tuple[str, str], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.certificates or self.apt or self.pip or self.npm or self.env)

    def with_authorities(self, pems: Iterable[bytes]) -> Trust:
        """Return a copy that also trusts these authorities."""
        added = (certificate for pem in pems for certificate in _parse_certificates(pem.decode("ascii")))
        certificates = tuple(sorted({*self.certificates, *added}))
        return replace(self, certificates=certificates, env={**self.env, **_BUNDLE_ENV}) if certificates else self

    @property
    def digest(self) -> str:
        content = {k: v for k, v in asdict(self).items() if k != "left_out"}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=dict).encode()).hexdigest()[:16]


def read_trust(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Trust:
    """Read the machine's settings (in tests: those of a directory). Reads only small files; never raises."""
    left_out: list[str] = []
    certificates = _find_extra_certificates(root)
    apt = tuple(_filter_settings("apt", read_apt_settings(root), lambda key: bool(APT_SETTING.match(key)), left_out))
    pip = tuple(_filter_settings("pip", _read_pip_settings(root), PIP_SETTINGS.__contains__, left_out))
    npm = tuple(_filter_settings("npm", _read_npm_settings(root), _is_npm_setting, left_out))
    proxies = [(name, value) for name in PROXY_VARIABLES for name, value in _find_in_either_case(environ, name)]
    env = dict(_filter_settings("environment", proxies, lambda _: True, left_out))
    if certificates:
        env |= _BUNDLE_ENV
    if npm:  # npm looks below its prefix, which users may move to their home
        env["NPM_CONFIG_GLOBALCONFIG"] = "/" + NPM_FILES[2]
    return Trust(certificates, apt, pip, npm, env, tuple(left_out))


def write_layer(trust: Trust, template: Path, layer: Path) -> None:
    """Fill the empty directory `layer`, which adds `trust` when mounted over `template`."""

    def write(path: str, text: str) -> None:
        target = layer / path.lstrip("/")
        _make_directories(target.parent, layer, template)
        target.write_text(text)
        target.chmod(0o644)

    if trust.certificates:
        existing = _read_certificates(template / BUNDLE.lstrip("/"))
        added = [pem for pem in trust.certificates if pem not in set(existing)]
        write(BUNDLE, "\n".join([*existing, *added]) + "\n")
        for pem in trust.certificates:  # so that running update-ca-certificates in the sandbox keeps them
            write(f"{ANCHORS[0]}/host-{hashlib.sha256(pem.encode()).hexdigest()[:12]}.crt", pem + "\n")
    if trust.apt:
        write("etc/apt/apt.conf.d/90host-trust", "".join(f'{key} "{value}";\n' for key, value in trust.apt))
    if trust.pip:
        write(PIP_FILES[0], "[global]\n" + "".join(f"{key} = {value}\n" for key, value in trust.pip))
    if trust.npm:
        for path in NPM_FILES:
            write(path, "".join(f"{key}={value}\n" for key, value in trust.npm))
    if trust.env:  # for shells that were not started by the agent, such as `sudo -i`
        write("etc/profile.d/host-trust.sh", "".join(f"export {k}='{v}'\n" for k, v in sorted(trust.env.items())))


def _make_directories(directory: Path, layer: Path, template: Path) -> None:
    """Create directories with the template's owner and mode, because the topmost directory of an overlay determines
    them."""
    if directory != layer:
        _make_directories(directory.parent, layer, template)
    directory.mkdir(exist_ok=True)
    original = template / directory.relative_to(layer)
    status = original.stat() if original.is_dir() else None
    directory.chmod(stat.S_IMODE(status.st_mode) if status else 0o755)
    if status and os.geteuid() == 0:
        os.chown(directory, status.st_uid, status.st_gid)


def is_safe(word: str, *, reachable: bool = True) -> bool:
    """Return whether a word of a setting may be shown to a sandbox: no credentials, no character that would end its
    line and, with `reachable`, nothing that only this machine itself can reach."""
    if re.search(r"[\x00-\x1f\"'\\`$?@]", word) or re.search(r"token|secret|passw|_auth", word, re.IGNORECASE):
        return False
    host = _parse_host(word)
    return not reachable or not (host == "localhost" or _is_loopback(host) or word.startswith(("file:", "/")))


def _filter_settings(
    owner: str, settings: Iterable[tuple[str, str]], is_known: Callable[[str], bool], left_out: list[str]
) -> Iterable[tuple[str, str]]:
    for key, value in settings:
        name = key.lower()
        if not is_known(key):
            left_out.append(f"{owner}: {key}")
            continue
        if name in {"cert", "cafile"} or name.endswith("::cainfo"):
            yield key, BUNDLE  # inside the sandbox the bundle always has this path
            continue
        words = value.split()
        kept = [word for word in words if is_safe(word, reachable=name not in {"no_proxy", "noproxy"})]
        if kept != words:
            left_out.append(f"{owner}: {key}")
        if kept:
            yield key, " ".join(kept)


def _is_npm_setting(key: str) -> bool:
    return key in NPM_SETTINGS or bool(re.fullmatch(r"@[\w.-]+:registry", key))


def read_apt_settings(root: Path = Path("/")) -> list[tuple[str, str]]:
    """Return apt's settings for reaching its archives, unfiltered: for a build, not for a sandbox."""
    if not (root / "etc/apt").is_dir():
        return []
    # apt reads this file before any other; it says where the others are
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as pointer:
        pointer.write(f'Dir "{root}/";\n')
        pointer.flush()
        command = ["apt-config", "dump", "--format", "%f\t%v%n", "Acquire"]
        environ = {**os.environ, "APT_CONFIG": pointer.name}
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, env=environ)
        except (OSError, subprocess.SubprocessError):
            return []
    pairs = (line.partition("\t") for line in result.stdout.splitlines())
    return [(key, value) for key, _, value in pairs if value and APT_SETTING.match(key)]


def _read_pip_settings(root: Path) -> list[tuple[str, str]]:
    settings: dict[str, str] = {}
    for path in PIP_FILES:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(_read_public_text(root / path))
        except configparser.Error:
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    return sorted(settings.items())


def _read_npm_settings(root: Path) -> list[tuple[str, str]]:
    settings: dict[str, str] = {}
    for path in NPM_FILES:
        for line in _read_public_text(root / path).splitlines():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith((";", "#")):
                settings[key.strip()] = value.strip()
    return sorted(settings.items())


def _find_extra_certificates(root: Path) -> tuple[str, ...]:
    """Return certificates that an administrator added: the anchors, and those in the system's bundle that are not
    packaged."""
    extra = {
        pem for anchor in ANCHORS for path in sorted((root / anchor).rglob("*")) for pem in _read_certificates(path)
    }
    packaged = {pem for path in (root / PUBLIC_AUTHORITIES).rglob("*.crt") for pem in _read_certificates(path)}
    if packaged:  # without the packaged ones, added ones cannot be recognised
        extra |= {pem for bundle in HOST_BUNDLES for pem in _read_certificates(root / bundle)} - packaged
    return tuple(sorted(extra))


def _read_certificates(path: Path) -> list[str]:
    return _parse_certificates(_read_public_text(path))


def _parse_certificates(text: str) -> list[str]:
    """Return the certificates in a PEM text in a normalised form, so that they can be compared."""
    blocks = _PEM.findall(text)
    bodies = ("".join(block.split("-----")[2].split()) for block in blocks)
    return [
        "\n".join(
            [
                "-----BEGIN CERTIFICATE-----",
                *(body[i : i + 64] for i in range(0, len(body), 64)),
                "-----END CERTIFICATE-----",
            ]
        )
        for body in bodies
    ]


def _read_public_text(path: Path) -> str:
    """Return a file's text if every user of the machine may read it, otherwise an empty string."""
    try:
        if not path.is_file() or not path.stat().st_mode & 0o004:
            return ""
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _find_in_either_case(environ: Mapping[str, str], name: str) -> list[tuple[str, str]]:
    return [(spelling, environ[spelling]) for spelling in (name, name.upper()) if environ.get(spelling)]


def _parse_host(word: str) -> str:
    try:
        return (urlsplit(word if "//" in word else f"//{word}").hostname or "").lower()
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
