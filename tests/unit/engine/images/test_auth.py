"""Registry login against minimal fake servers. tests/protocol/test_images.py covers a real registry with passwords."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from sandyard.engine.images.auth import Challenge, Login, RegistryAuthenticator, parse_challenges
from sandyard.engine.images.clouds import Clouds, derive_signing_key, get_login, sign_request
from sandyard.engine.images.http_client import HttpClient
from sandyard.engine.images.model import AwsAuth, GcpAuth, PasswordAuth, RegistryAuth
from sandyard.engine.images.registry_access import RegistryPolicy
from sandyard.kit.errors import ForbiddenError, InvalidInputError, UnsupportedError
from sandyard.kit.secret import Secret
from tests.images.server import ReceivedRequest, Reply, run_server

LOOPBACK_ONLY = RegistryPolicy(registries=frozenset({"127.0.0.1"}))
AWS = {"type": "aws", "awsAccessKeyId": "AKID", "awsSecretAccessKey": "s3cr3t", "awsRegion": "eu-west-1"}


def make_client() -> HttpClient:
    return HttpClient(LOOPBACK_ONLY, pause=0.01)


# Credentials from clients ------------------------------------------------------------------------------------------------------


def test_credentials_are_parsed() -> None:
    assert RegistryAuth.parse({"type": "registry", "username": "u", "password": "p"}) == PasswordAuth(
        username="u", password=Secret("p")
    )
    parsed = RegistryAuth.parse(AWS)
    assert isinstance(parsed, AwsAuth) and parsed.aws_secret_access_key.reveal() == "s3cr3t"
    assert isinstance(RegistryAuth.parse({"type": "gcp", "serviceAccountJson": "{}"}), GcpAuth)
    assert "s3cr3t" not in repr(parsed) + str(parsed)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"type": "ftp"},
        {"type": "registry", "username": "u"},
        {**AWS, "awsRegion": "evil.example/"},
        {**AWS, "awsSecretAccessKey": 1},
    ],
)
def test_invalid_credentials_are_rejected(raw: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match="fromImageRegistry") as caught:
        RegistryAuth.parse(raw)
    assert "s3cr3t" not in caught.value.message


# Challenges from registries ----------------------------------------------------------------------------------------------------


def test_challenges_are_parsed() -> None:
    assert parse_challenges('Bearer realm="https://a/t?x=1",service="s", scope="repository:a/b:pull,push"') == [
        Challenge("bearer", {"realm": "https://a/t?x=1", "service": "s", "scope": "repository:a/b:pull,push"})
    ]
    assert parse_challenges('Basic realm="a \\"b\\"", Bearer realm=x') == [
        Challenge("basic", {"realm": 'a "b"'}),
        Challenge("bearer", {"realm": "x"}),
    ]
    assert parse_challenges("Negotiate") == [Challenge("negotiate", {})]
    hostile = "Bearer a=b" + " " * (64 << 10) + "!"  # takes minutes in a backtracking regular expression
    assert parse_challenges(hostile) == [Challenge("bearer", {"a": "b"})]
    assert parse_challenges("") == parse_challenges('="') == []


async def test_a_token_is_fetched_with_the_login() -> None:
    def reply_with_token(request: ReceivedRequest) -> Reply:
        good = request.headers.get("authorization") == "Basic " + base64.b64encode(b"u:p").decode()
        return Reply(200, json.dumps({"access_token": "t0k"}).encode()) if good else Reply(401)

    with run_server(reply_with_token) as server:
        async with make_client() as client:
            header = f'Bearer realm="{server.url}/token?a=b",service="reg"'
            with_login = RegistryAuthenticator(client, "x/y", _login_provider(Login("u", Secret("p"))))
            assert await with_login.answer_challenge(header, None) == "Bearer t0k"
            # Another task also got a 401: the token is not fetched again.
            assert await with_login.answer_challenge(header, None) == "Bearer t0k"
            assert len(server.requests) == 1
            query = parse_qs(urlsplit(server.requests[0].path).query)
            assert query == {"a": ["b"], "service": ["reg"], "scope": ["repository:x/y:pull"]}
            with pytest.raises(ForbiddenError, match="without credentials"):
                await RegistryAuthenticator(client, "x/y", _login_provider(None)).answer_challenge(header, None)


async def test_basic_authentication_is_tried_once() -> None:
    async with make_client() as client:
        authenticator = RegistryAuthenticator(client, "x", _login_provider(Login("u", Secret("p"))))
        first = await authenticator.answer_challenge('Basic realm="x"', None)
        assert first == "Basic dTpw"
        assert await authenticator.answer_challenge('Basic realm="x"', first) is None
        assert (
            await RegistryAuthenticator(client, "x", _login_provider(None)).answer_challenge('Basic realm="x"', None)
            is None
        )
        with pytest.raises(UnsupportedError, match="negotiate"):
            await RegistryAuthenticator(client, "x", _login_provider(None)).answer_challenge("Negotiate", None)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"no", b'{"token": 1}', b'{"token": "a\\nb"}'])
async def test_an_invalid_token_response_is_rejected(body: bytes) -> None:
    with run_server(lambda _: Reply(200, body)) as server:
        async with make_client() as client:
            with pytest.raises(InvalidInputError, match="returned no token"):
                await RegistryAuthenticator(client, "x", _login_provider(None)).answer_challenge(
                    f'Bearer realm="{server.url}"', None
                )


async def test_passwords_are_not_sent_over_plain_http_to_other_hosts() -> None:
    async with make_client() as client:
        with pytest.raises(InvalidInputError, match="SANDYARD_IMAGES_INSECURE"):
            await RegistryAuthenticator(client, "x", _login_provider(Login("u", Secret("p")))).answer_challenge(
                'Bearer realm="http://tokens.example/"', None
            )


def _login_provider(login: Login | None):  # type: ignore[no-untyped-def]
    async def get_login() -> Login | None:
        return login

    return get_login


# Clouds ------------------------------------------------------------------------------------------------------------------------


def test_the_signing_key_matches_amazons_example() -> None:
    key = derive_signing_key(Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"), "20120215", "us-east-1", "iam")
    assert key.hex() == "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d"


async def test_amazon_returns_a_login_for_a_signed_request() -> None:
    def reply_as_amazon(request: ReceivedRequest) -> Reply:
        now = datetime.datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        parts = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=(.+), SignedHeaders=(.+), Signature=(.+)", request.headers["authorization"]
        )
        assert parts and request.method == "POST" and request.headers["x-amz-target"].endswith(".GetAuthorizationToken")
        lines = "".join(f"{name}:{request.headers[name]}\n" for name in parts[2].split(";"))
        canonical = "\n".join(("POST", "/", "", lines, parts[2], hashlib.sha256(request.body).hexdigest()))
        key_id, scope = parts[1].split("/", 1)
        text = "\n".join(
            ("AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest())
        )
        key = derive_signing_key(Secret("s3cr3t"), now.strftime("%Y%m%d"), "eu-west-1", "ecr")
        if key_id != "AKID" or hmac.new(key, text.encode(), hashlib.sha256).hexdigest() != parts[3]:
            return Reply(400, b'{"__type": "com.amazon#UnrecognizedClientException"}')
        token = base64.b64encode(b"AWS:passw0rd").decode()
        return Reply(200, json.dumps({"authorizationData": [{"authorizationToken": token}]}).encode())

    with run_server(reply_as_amazon) as server:
        async with make_client() as client:
            clouds = Clouds(ecr=f"{server.url}/")
            login = await get_login(RegistryAuth.parse(AWS), client, clouds)
            assert (login.username, login.password.reveal()) == ("AWS", "passw0rd")
            with pytest.raises(ForbiddenError, match="UnrecognizedClientException"):
                await get_login(RegistryAuth.parse({**AWS, "awsSecretAccessKey": "wrong"}), client, clouds)
    assert (
        sign_request(AwsAuth.model_validate(AWS), "h", b"{}", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))[
            "X-Amz-Date"
        ]
        == "20260101T000000Z"
    )


async def test_google_returns_a_token_for_a_signed_claim() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()

    def reply_as_google(request: ReceivedRequest) -> Reply:
        claim = parse_qs(request.body.decode())["assertion"][0]
        text, _, signature = claim.rpartition(".")
        key.public_key().verify(_decode_base64(signature), text.encode(), padding.PKCS1v15(), hashes.SHA256())
        body = json.loads(_decode_base64(text.partition(".")[2]))
        if body["iss"] != "robot@example.iam":
            return Reply(400, b'{"error": "invalid_grant", "error_description": "Invalid grant: account not found"}')
        assert body["aud"] == f"{server.url}/token" and body["exp"] > body["iat"]
        return Reply(200, b'{"access_token": "ya29"}')

    with run_server(reply_as_google) as server:
        async with make_client() as client:
            clouds = Clouds(google=f"{server.url}/token")
            account = {"client_email": "robot@example.iam", "private_key": pem, "token_uri": "http://169.254.169.254/"}
            login = await get_login(_parse_gcp_auth(account), client, clouds)
            assert (login.username, login.password.reveal()) == ("oauth2accesstoken", "ya29")
            with pytest.raises(ForbiddenError, match="account not found"):
                await get_login(_parse_gcp_auth({**account, "client_email": "nobody"}), client, clouds)
            for wrong in ({}, [], {**account, "private_key": "x"}):
                with pytest.raises(InvalidInputError, match="client_email"):
                    await get_login(_parse_gcp_auth(wrong), client, clouds)


def _parse_gcp_auth(account: object) -> RegistryAuth:
    return RegistryAuth.parse({"type": "gcp", "serviceAccountJson": json.dumps(account)})


def _decode_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
