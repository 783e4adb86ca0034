from __future__ import annotations

import asyncio
import functools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from sqlalchemy import select, update

from sandyard.kit.errors import ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.kit.vault import VaultError
from sandyard.platform.db.models import Credential
from sandyard.platform.domain.projects.credentials import AppKey, CredentialKind, Credentials, validate_credentials
from tests.unit.platform.world import World

TOKEN = "github_pat_11ABCDEFG0123456789_wxyz"
Format = serialization.PrivateFormat


def encode_pem(key: PrivateKeyTypes, form: Format = Format.PKCS8, passphrase: bytes | None = None) -> Secret:
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return Secret(key.private_bytes(serialization.Encoding.PEM, form, encryption).decode())


@functools.cache
def rsa_key() -> rsa.RSAPrivateKey:
    """Generated when first needed, because that takes a while."""
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def credentials(world: World) -> Credentials:
    return world.credentials


async def test_credentials_are_written_listed_revealed_and_removed(world: World, credentials: Credentials) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website")
    assert await credentials.list(maria, project.id) == []
    first = await credentials.put(maria, project.id, token=Secret(TOKEN))
    await world.clock.advance(1)
    second = await credentials.put(
        maria, project.id, token=Secret(TOKEN[:-4] + "0000"), username="maria", webhook_secret=Secret("s" * 16)
    )
    assert [(info.kind, info.hint) for info in first] == [("token", "…wxyz")]
    assert [(info.kind, info.hint) for info in second] == [("token", "…0000"), ("webhook_secret", "set")]
    assert second[0].created_at == first[0].created_at and second[0].updated_at > first[0].updated_at
    revealed = await credentials.reveal(project.id, "token")
    assert revealed is not None and json.loads(revealed.reveal()) == {"token": TOKEN[:-4] + "0000", "username": "maria"}
    assert await credentials.reveal(project.id, CredentialKind.WEBHOOK_SECRET) == Secret("s" * 16)
    await credentials.remove(maria, project.id, "token")
    assert await credentials.reveal(project.id, "token") is None
    for gone in ("token", "ssh_key", "no such kind"):
        with pytest.raises(NotFoundError):
            await credentials.remove(maria, project.id, gone)
    events = [
        (event.kind, event.project_id, event.data) for event in await world.list_events() if "credential" in event.kind
    ]
    written, removed = "project.credential_written", "project.credential_removed"
    assert events == [
        (written, project.id, {"credential": "token"}),
        (written, project.id, {"credential": "token"}),
        (written, project.id, {"credential": "webhook_secret"}),
        (removed, project.id, {"credential": "token"}),
    ]


async def test_only_the_owner_may_change_credentials(world: World, credentials: Credentials) -> None:
    maria, otto, eve = [(await world.create_person(name)).principal for name in ("maria", "otto", "eve")]
    project = await world.projects.create(maria, "website")
    await world.projects.add_member(maria, project.id, otto.user_id)
    await credentials.put(maria, project.id, token=Secret(TOKEN))
    assert [info.kind for info in await credentials.list(otto, project.id)] == ["token"]
    for refused in (
        credentials.put(otto, project.id, token=Secret("x" * 20)),
        credentials.remove(otto, project.id, "token"),
    ):
        with pytest.raises(ForbiddenError):
            await refused
    for hidden in (
        credentials.put(eve, project.id, token=Secret("x" * 20)),
        credentials.remove(eve, project.id, "token"),
        credentials.list(eve, project.id),
    ):
        with pytest.raises(NotFoundError):
            await hidden
    with pytest.raises(InvalidInputError, match="at least one"):
        await credentials.put(maria, project.id)
    await world.projects.delete(maria, project.id)
    async with world.database.reading() as session:
        assert list(await session.scalars(select(Credential))) == []
    with pytest.raises(NotFoundError):
        await credentials.store(project.id, validate_credentials(Secret(TOKEN)))


async def test_credentials_are_encrypted_and_bound_to_their_row(world: World, credentials: Credentials) -> None:
    maria = (await world.create_person("maria")).principal
    mine, other = [await world.projects.create(maria, name) for name in ("mine", "other")]
    await credentials.put(maria, mine.id, token=Secret(TOKEN))
    await credentials.put(maria, other.id, token=Secret("x" * 20))
    for path in world.settings.data_dir.iterdir():
        assert TOKEN.encode() not in path.read_bytes()
    async with world.database.transaction() as tx:
        row = await tx.session.get(Credential, (mine.id, "token"))
        assert row is not None and TOKEN.encode() not in row.value
        swap = update(Credential).where(Credential.project_id == other.id)
        await tx.session.execute(swap.values(value=row.value))
    with pytest.raises(VaultError):
        await credentials.reveal(other.id, "token")


async def test_concurrent_writes_store_one_credential(world: World, credentials: Credentials) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website")
    await asyncio.gather(*(credentials.put(maria, project.id, token=Secret("x" * 20 + str(n))) for n in range(8)))
    assert len(await credentials.list(maria, project.id)) == 1


async def test_one_invalid_credential_stores_none(world: World, credentials: Credentials) -> None:
    maria = (await world.create_person("maria")).principal
    project = await world.projects.create(maria, "website")
    with pytest.raises(InvalidInputError):
        await credentials.put(maria, project.id, token=Secret(TOKEN), webhook_secret=Secret("short"))
    assert await credentials.list(maria, project.id) == []


@pytest.mark.parametrize("token", ["", " ", "a b", "a\nb", "abc\n", "tökén", "a\x7fb", "x" * 1001])
def test_an_invalid_token_is_rejected(token: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        validate_credentials(Secret(token))
    assert len(token) < 3 or token not in refused.value.message


@pytest.mark.parametrize("username", ["a:b", "a b", "ä", "x" * 201, "a\n"])
def test_an_invalid_username_is_rejected(username: str) -> None:
    with pytest.raises(InvalidInputError):
        validate_credentials(Secret(TOKEN), username)


def test_a_username_needs_a_token_and_a_short_token_gets_no_hint() -> None:
    with pytest.raises(InvalidInputError, match="Enter both"):
        validate_credentials(username="maria")
    assert validate_credentials(Secret("short-token"))[0].hint == "…"


@pytest.mark.parametrize(
    "create",
    [ed25519.Ed25519PrivateKey.generate, lambda: ec.generate_private_key(ec.SECP256R1()), rsa_key],
    ids=["ed25519", "ecdsa", "rsa"],
)
def test_ssh_keys_are_stored_as_openssh_reads_them(create: Callable[[], PrivateKeyTypes], tmp_path: Path) -> None:
    """However the key was pasted. The hint equals the output of ssh-keygen."""
    key = encode_pem(create())
    (draft,) = validate_credentials(key=Secret("\r\n" + key.reveal().replace("\n", "\r\n") + "  "))
    again = validate_credentials(key=draft.value)[0]
    assert (again.kind, again.hint) == (CredentialKind.SSH_KEY, draft.hint)
    file = tmp_path / "key"
    file.write_text(draft.value.reveal())
    file.chmod(0o600)
    printed = subprocess.run(["ssh-keygen", "-l", "-f", file], check=True, capture_output=True, text=True).stdout
    kind, fingerprint = draft.hint.split()
    assert fingerprint == printed.split()[1]
    public = subprocess.run(["ssh-keygen", "-y", "-f", file], check=True, capture_output=True, text=True).stdout
    assert kind == public.split()[0]


ED25519 = ed25519.Ed25519PrivateKey.generate()
PUBLIC = ED25519.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def encode_public_pem() -> Secret:
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return Secret(rsa_key().public_key().public_bytes(encoding, form).decode())


@pytest.mark.parametrize(
    ("create", "words"),
    [
        (lambda: encode_pem(ED25519, passphrase=b"hunter2"), "passphrase"),
        (lambda: encode_pem(rsa_key(), Format.TraditionalOpenSSL, b"hunter2"), "passphrase"),
        (lambda: Secret(PUBLIC), "is a public key"),
        (encode_public_pem, "is a public key"),
        (lambda: Secret("PuTTY-User-Key-File-3: ssh-ed25519\n"), "PuTTY"),
        (lambda: Secret("hunter2"), "not a private key"),
        (lambda: Secret(""), "not a private key"),
        (lambda: Secret(encode_pem(rsa_key()).reveal()[:700]), "incomplete"),
        (lambda: Secret(encode_pem(ED25519, Format.OpenSSH).reveal().replace("b3BlbnNzaC1rZXk", "xxxx")), "incomplete"),
        (lambda: encode_pem(rsa.generate_private_key(65537, 1024)), "1024 bits"),
        (lambda: encode_pem(dsa.generate_private_key(1024)), "servers reject"),
        (lambda: Secret("-----BEGIN PRIVATE KEY-----\n" + "A" * 20_000), "longer than"),
    ],
)
def test_an_invalid_ssh_key_is_rejected(create: Callable[[], Secret], words: str) -> None:
    key = create()
    with pytest.raises(InvalidInputError, match=words) as refused:
        validate_credentials(key=key)
    assert not any(line in refused.value.message for line in key.reveal().split("\n")[1:-2] if line)


def test_an_encrypted_openssh_key_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "hunter2", "-f", file], check=True)
    with pytest.raises(InvalidInputError, match="passphrase"):
        validate_credentials(key=Secret(file.read_text()))


def test_an_app_key_is_stored_with_its_ids() -> None:
    (draft,) = validate_credentials(app=AppKey("123456", "987", encode_pem(rsa_key())))
    stored = json.loads(draft.value.reveal())
    assert (stored["appId"], stored["installationId"]) == ("123456", "987")
    assert stored["privateKey"].startswith("-----BEGIN RSA PRIVATE KEY-----")
    assert draft.hint.startswith("123456 SHA256:") and len(draft.hint) <= 100
    assert len(validate_credentials(app=AppKey("I" * 40, "9" * 20, encode_pem(rsa_key())))[0].hint) <= 100


@pytest.mark.parametrize(
    ("create", "words"),
    [
        (lambda: AppKey("", "1", encode_pem(rsa_key())), "app id"),
        (lambda: AppKey("1/../2", "1", encode_pem(rsa_key())), "app id"),
        (lambda: AppKey("1", "one", encode_pem(rsa_key())), "installation id"),
        (lambda: AppKey("1", "1\n", encode_pem(rsa_key())), "installation id"),
        (lambda: AppKey("1", "1", encode_pem(ED25519)), "not an RSA key"),
        (lambda: AppKey("1", "1", encode_pem(rsa_key(), passphrase=b"x")), "passphrase"),
        (lambda: AppKey("1", "1", Secret(TOKEN)), "not a private key"),
    ],
)
def test_an_invalid_app_key_is_rejected(create: Callable[[], AppKey], words: str) -> None:
    app = create()
    with pytest.raises(InvalidInputError, match=words):
        validate_credentials(app=app)


@pytest.mark.parametrize("secret", ["", "x" * 15, "x" * 1001, "x" * 16 + "\n", "x" * 8 + " " + "x" * 8])
def test_an_invalid_webhook_secret_is_rejected(secret: str) -> None:
    with pytest.raises(InvalidInputError, match="openssl rand"):
        validate_credentials(webhook_secret=Secret(secret))
