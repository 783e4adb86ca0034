"""Logins for the registries of two clouds, created from keys that a client sent: a signed request for Amazon, a signed
claim for Google.

The keys themselves are sent only to the cloud's own servers, never to the registry in the image's name.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlencode, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from sandyard.engine.images.auth import Login
from sandyard.engine.images.http_client import HttpClient, HttpResponse
from sandyard.engine.images.model import AwsAuth, GcpAuth, PasswordAuth, RegistryAuth
from sandyard.kit import bounded_json
from sandyard.kit.errors import ForbiddenError, InvalidInputError, SandyardError
from sandyard.kit.secret import Secret

_MAX_BYTES, _MAX_VALUES = 1 << 20, 1000
_ECR_TARGET = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
_JSON = "application/x-amz-json-1.1"


@dataclass(frozen=True, slots=True)
class Clouds:
    """The addresses of the clouds' own servers. Tests replace them."""

    ecr: str = "https://api.ecr.{region}.amazonaws.com/"
    google: str = "https://oauth2.googleapis.com/token"


async def get_login(auth: RegistryAuth, client: HttpClient, clouds: Clouds) -> Login:
    """Return a registry login. Raises ForbiddenError if the cloud rejects the key, InvalidInputError if it is not a
    valid key."""
    if isinstance(auth, PasswordAuth):
        return Login(auth.username, auth.password)
    if isinstance(auth, AwsAuth):
        return await _get_amazon_login(auth, client, clouds.ecr)
    if isinstance(auth, GcpAuth):
        return await _get_google_login(auth, client, clouds.google)
    raise InvalidInputError("These are not valid credentials for a registry.")


# Amazon -----------------------------------------------------------------------------------------------------------------------


async def _get_amazon_login(auth: AwsAuth, client: HttpClient, server: str) -> Login:
    suffix = ".cn" if auth.aws_region.startswith("cn-") else ""
    url = server.format(region=auth.aws_region).replace("amazonaws.com", f"amazonaws.com{suffix}")
    now = datetime.datetime.now(datetime.UTC)
    headers = sign_request(auth, urlsplit(url).netloc, b"{}", now)
    response = await client.request(url, headers, _MAX_BYTES, method="POST", content=b"{}")
    if response.status in (400, 401, 403):
        kind = str(_parse_document(response).get("__type", "")).rpartition("#")[2][:100]
        raise ForbiddenError(
            f"Amazon rejected the access key for registries in {auth.aws_region}{f' ({kind})' if kind else ''}."
        )
    data = _parse_document(response).get("authorizationData")
    try:
        raw = cast("list[dict[str, str]]", data)[0]["authorizationToken"]
        username, colon, password = base64.b64decode(raw, validate=True).decode().partition(":")
    except (LookupError, TypeError, ValueError):
        colon = ""
    if not colon:
        raise SandyardError(f"Amazon returned no login for registries in {auth.aws_region} (status {response.status}).")
    return Login(username, Secret(password))


def sign_request(auth: AwsAuth, host: str, content: bytes, now: datetime.datetime) -> dict[str, str]:
    """Return the headers of a POST to `/`, signed with AWS Signature Version 4."""
    timestamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    signed = {"content-type": _JSON, "host": host, "x-amz-date": timestamp, "x-amz-target": _ECR_TARGET}
    names = ";".join(signed)
    lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
    canonical = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(content).hexdigest()}"
    scope = f"{day}/{auth.aws_region}/ecr/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{timestamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = derive_signing_key(auth.aws_secret_access_key, day, auth.aws_region, "ecr")
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={auth.aws_access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {
        "Content-Type": _JSON,
        "X-Amz-Date": timestamp,
        "X-Amz-Target": _ECR_TARGET,
        "Authorization": f"AWS4-HMAC-SHA256 {credential}",
    }


def derive_signing_key(secret: Secret, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret.reveal()}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


# Google -----------------------------------------------------------------------------------------------------------------------


async def _get_google_login(auth: GcpAuth, client: HttpClient, server: str) -> Login:
    claim = _make_claim(auth, server)
    form = urlencode({"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": claim}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response = await client.request(server, headers, _MAX_BYTES, method="POST", content=form)
    if response.status in (400, 401, 403):
        description = str(_parse_document(response).get("error_description", ""))[:200]
        raise ForbiddenError(f"Google rejected the service account{f': {description}' if description else ''}.")
    token = _parse_document(response).get("access_token")
    if not isinstance(token, str):
        raise SandyardError(f"Google returned no token for the service account (status {response.status}).")
    return Login("oauth2accesstoken", Secret(token))


def _make_claim(auth: GcpAuth, server: str) -> str:
    """Return a JWT in which the service account requests read access."""
    try:
        account = bounded_json.parse(auth.service_account_json.reveal(), largest=_MAX_BYTES, values=_MAX_VALUES)
        email, pem, key_id = account["client_email"], account["private_key"], account.get("private_key_id", "")
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, LookupError, TypeError, AttributeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise InvalidInputError(
            "serviceAccountJson is not the key of a service account. It must be the JSON file that Google provides, with client_email and "
            "private_key."
        )
    now = int(time.time())
    head = {"alg": "RS256", "typ": "JWT", "kid": key_id}
    scope = (
        "https://www.googleapis.com/auth/devstorage.read_only https://www.googleapis.com/auth/cloud-platform.read-only"
    )
    body = {"iss": email, "scope": scope, "aud": server, "iat": now, "exp": now + 600}
    text = f"{_encode_base64url(json.dumps(head).encode())}.{_encode_base64url(json.dumps(body).encode())}"
    return f"{text}.{_encode_base64url(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encode_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _parse_document(response: HttpResponse) -> dict[str, object]:
    try:
        document = bounded_json.parse(response.body, largest=_MAX_BYTES, values=_MAX_VALUES)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
