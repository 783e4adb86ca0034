"""A real registry, Debian's docker-registry, on a loopback port: with a password, or with tokens of our own token server."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from tests.images.server import ReceivedRequest, Reply, run_server

USER, PASSWORD = "alice", "wonderland"
_HTPASSWD = f"{USER}:$2b$04$P48UgJbls8xfBL5GOTDp4eW7stRtTySRP.2NPDhhiDTIG8XDXmvp6\n"
_SERVICE, _ISSUER = "tests", "tests"
_READY_S = 20.0


@dataclass(frozen=True)
class RealRegistry:
    host: str

    def push(self, source: str, name: str) -> str:
        """Copy an image to the registry with skopeo. Returns its reference."""
        target = f"{self.host}/{name}"
        command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--all", "--dest-tls-verify=false"]
        command += [f"--dest-creds={USER}:{PASSWORD}", source, f"docker://{target}"]
        subprocess.run(command, check=True, capture_output=True)
        return target


@contextlib.contextmanager
def with_password(folder: Path) -> Iterator[RealRegistry]:
    folder.mkdir()
    (folder / "htpasswd").write_text(_HTPASSWD)
    with _running(folder, {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}) as host:
        yield RealRegistry(host)


@contextlib.contextmanager
def with_tokens(folder: Path) -> Iterator[RealRegistry]:
    folder.mkdir()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificate = _certificate(key)
    bundle = folder / "tokens.pem"
    bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue_token(request: ReceivedRequest) -> Reply:
        if request.headers.get("authorization") != "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode():
            return Reply(401, b'{"details": "incorrect username or password"}')
        query = parse_qs(urlsplit(request.path).query)
        scopes = [scope.split(":") for scope in query.get("scope", ())]
        access = [{"type": kind, "name": name, "actions": verbs.split(",")} for kind, name, verbs in scopes]
        return Reply(200, json.dumps({"token": _token(key, certificate, access)}).encode())

    with run_server(issue_token) as tokens:
        realm = {"realm": f"{tokens.url}/token", "service": _SERVICE, "issuer": _ISSUER, "rootcertbundle": str(bundle)}
        with _running(folder, {"token": realm}) as host:
            yield RealRegistry(host)


@contextlib.contextmanager
def _running(folder: Path, auth: dict[str, dict[str, str]]) -> Iterator[str]:
    program = shutil.which("docker-registry")
    assert program, "the tests need docker-registry: scripts/system-packages tests"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": host},
        "auth": auth,
    }
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is valid YAML
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _READY_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://{host}/v2/", timeout=2, trust_env=False).status_code == 401:
                    break
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield host
    finally:
        process.terminate()
        process.wait()


def _certificate(key: rsa.RSAPrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    return builder.not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())


def _token(key: rsa.RSAPrivateKey, certificate: x509.Certificate, access: list[dict[str, object]]) -> str:
    now = int(time.time())
    chain = [base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()]
    head = {"typ": "JWT", "alg": "RS256", "x5c": chain}
    times = {"iat": now, "nbf": now - 60, "exp": now + 300}
    body = {"iss": _ISSUER, "sub": USER, "aud": _SERVICE, "jti": str(now), "access": access, **times}
    text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, body))
    return f"{text}.{_encoded(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
