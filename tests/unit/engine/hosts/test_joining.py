"""A machine joins an engine over TLS, renews its certificate and leaves."""

from __future__ import annotations

import asyncio
import ssl
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.engine.certificates import files
from sandyard.engine.certificates.authority import Authority
from sandyard.engine.hosts import joining
from sandyard.engine.hosts.authority import HostAuthority, compute_fingerprint
from sandyard.engine.hosts.enrollment import sign_leave
from sandyard.engine.hosts.identity import HostIdentity, HostRegistration, HostServerTls, make_certificate_request
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.hosts.joining import JoinRefusedError
from sandyard.kit.clock import ManualClock, SystemClock
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError, UnreachableError
from sandyard.kit.secret import Secret
from tests.harness.asgi import serve_app
from tests.unit.engine.hosts.support import EngineSide, handshake, open_engine


async def join(engine: EngineSide, folder: Path, name: str = "two", **options: Any) -> HostIdentity:
    token = options.pop("token", None) or engine.enrollment.create_token().token
    identity = HostIdentity(folder)
    details = {"name": name, "address": None, "port": 3011, "labels": {}, **options}
    await asyncio.to_thread(partial(joining.join, token, identity, **details))
    return identity


async def test_a_host_joins_with_a_token_and_is_listed(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        changes: list[int] = []
        engine.hosts.on_change(lambda: changes.append(len(engine.hosts.list_records())))
        async with engine.serve():
            identity = await join(engine, tmp_path / "host", labels={"zone": "a"})
        (record,) = engine.hosts.list_records()
        assert (record.name, record.address, record.port, record.labels) == ("two", "127.0.0.1", 3011, {"zone": "a"})
        assert identity.get() == HostRegistration(record.id, "two", engine.enrollment.address, 3011)
        assert changes == [1]
        assert stat.S_IMODE(identity.key_path.stat().st_mode) == 0o600
        serial = x509.load_pem_x509_certificate(identity.certificate_path.read_bytes()).serial_number
        assert engine.hosts.get("two").serial == f"{serial:x}"
    with open_engine(tmp_path / "engine") as engine:  # the same after a restart
        assert engine.hosts.list_records() == [record]


async def test_engine_and_host_accept_only_each_other(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine, open_engine(tmp_path / "foreign") as foreign:
        async with engine.serve():
            first = await join(engine, tmp_path / "one", "one")
            second = await join(engine, tmp_path / "two", "two")
        async with foreign.serve():
            stranger = await join(foreign, tmp_path / "three", "three")
        ids = {name: engine.hosts.get(name).record.id for name in ("one", "two")}
        server = HostServerTls(first).context
        handshake(server, engine.hosts.make_client_context(ids["one"]), ids["one"])

        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):  # another host at its address
            handshake(HostServerTls(second).context, engine.hosts.make_client_context(ids["one"]), ids["one"])
        with pytest.raises(ssl.SSLCertVerificationError):  # a host of another engine
            handshake(HostServerTls(stranger).context, engine.hosts.make_client_context(ids["one"]), ids["one"])
        with pytest.raises(ssl.SSLError):  # another engine
            handshake(server, foreign.authority.get_client_context(), ids["one"])
        with pytest.raises(ssl.SSLError):  # a client without a certificate
            handshake(server, make_client(first), ids["one"])
        with pytest.raises(ssl.SSLError):  # a host that poses as the engine
            handshake(server, make_client(first, second), ids["one"])
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):  # a host that accepts new hosts
            handshake(make_server(second), make_client(first), "engine")


async def test_certificates_for_clients_and_sandboxes_are_not_accepted_as_a_hosts(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            await join(engine, tmp_path / "host")
        host_id = engine.hosts.get("two").record.id
        context = engine.hosts.make_client_context(host_id)
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(Authority.load(tmp_path / "tls").make_server_context([host_id]), context, host_id)


@pytest.mark.parametrize("damage", ["secret", "id", "used", "expired"])
async def test_a_wrong_used_or_expired_token_is_refused(tmp_path: Path, damage: str) -> None:
    clock = ManualClock(SystemClock().now())
    with open_engine(tmp_path / "engine", clock) as engine:
        async with engine.serve():
            token = engine.enrollment.create_token(60).token
            expected = "not valid for this engine"
            if damage == "secret":
                token = replace(token, secret=Secret("0" * 48))
            elif damage == "id":
                token = replace(token, id="unknown")
            elif damage == "used":
                await join(engine, tmp_path / "first", "first", token=token)
                expected = "used by another host"
            else:
                await clock.advance(61)
                expected = "has expired"
            before = engine.hosts.list_records()
            with pytest.raises(JoinRefusedError, match=expected):
                await join(engine, tmp_path / "host", token=token)
            assert engine.hosts.list_records() == before
            assert HostIdentity(tmp_path / "host").find() is None


async def test_joining_again_undoes_nothing_that_an_administrator_has_set(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            token = engine.enrollment.create_token().token
            await join(engine, tmp_path / "host", token=token, labels={"zone": "a", "gpu": "yes"})
            engine.hosts.update("two", labels={"zone": "b", "gpu": None, "team": "x"}, evacuating=True)
            # the host repeats it
            await join(engine, tmp_path / "host", token=token, labels={"zone": "a", "gpu": "yes"})
            host = engine.hosts.get("two")
            assert (dict(host.record.labels), host.evacuating) == ({"zone": "b", "team": "x"}, True)
            engine.hosts.update("two", lost=True)
            await join(engine, tmp_path / "host", labels={"zone": "c"})  # an administrator has created another token
            host = engine.hosts.get("two")
            assert (dict(host.record.labels), host.lost) == ({"zone": "c", "team": "x"}, True)


async def test_a_host_whose_response_was_lost_joins_again_with_the_same_token(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            token = engine.enrollment.create_token().token
            identity = await join(engine, tmp_path / "host", token=token)
            first = identity.get()
            (identity.folder / "host.json").unlink()
            assert (await join(engine, tmp_path / "host", token=token)).get() == first
            assert len(engine.hosts.list_records()) == 1


async def test_joining_again_with_a_new_token_changes_the_record_and_keeps_the_id(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            await join(engine, tmp_path / "host")
            (before,) = engine.hosts.list_records()
            engine.hosts.update("two", draining=True)
            await join(engine, tmp_path / "host", "renamed", address="10.1.2.3", port=4000)
            (after,) = engine.hosts.list_records()
        assert after == replace(before, name="renamed", address="10.1.2.3", port=4000, draining=True)


async def test_nothing_is_sent_to_an_engine_with_another_authority(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine, open_engine(tmp_path / "foreign") as foreign:
        async with engine.serve(), foreign.serve():
            token = replace(engine.enrollment.create_token().token, address=foreign.enrollment.address)
            with pytest.raises(ForbiddenError, match="Nothing was sent"):
                await join(engine, tmp_path / "host", token=token)
            assert not (tmp_path / "host").exists()


async def test_a_machine_joins_one_engine_at_a_time(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine, open_engine(tmp_path / "other") as other:
        async with engine.serve(), other.serve():
            await join(engine, tmp_path / "host")
            with pytest.raises(ConflictError, match="has joined another engine"):
                await join(other, tmp_path / "host")


async def test_names_are_unique_and_checked(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            await join(engine, tmp_path / "one")
            for name, expected in (
                ("two", "Another host"),
                ("local", "reserved"),
                ("host-x", "reserved"),
                ("a b", "valid"),
            ):
                with pytest.raises(JoinRefusedError, match=expected):
                    await join(engine, tmp_path / "two", name)
            for wrong in ({"address": "0.0.0.0"}, {"address": "a b"}, {"port": 0}, {"labels": {"k": "a b"}}):
                with pytest.raises(JoinRefusedError):
                    await join(engine, tmp_path / "two", "three", **wrong)


async def test_a_certificate_is_renewed_before_it_expires_and_used_at_once(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            identity = await join(engine, tmp_path / "host")
            host_id, expires_at, key = identity.get().id, identity.read_expiry(), identity.key_path.read_bytes()
            server = HostServerTls(identity)
            assert not await asyncio.to_thread(joining.renew_if_due, identity, expires_at - 11 * 24 * 3600)
            before = identity.certificate_path.read_bytes()
            assert await asyncio.to_thread(joining.renew_if_due, identity, expires_at - 9 * 24 * 3600)
        renewed = identity.certificate_path.read_bytes()
        assert renewed != before
        assert identity.key_path.read_bytes() == key
        assert engine.hosts.get(host_id).serial == f"{x509.load_pem_x509_certificate(renewed).serial_number:x}"
        server.check_files()
        shown = handshake(server.context, engine.hosts.make_client_context(host_id), host_id)
        assert shown == x509.load_pem_x509_certificate(renewed)


async def test_a_forgotten_host_gets_no_certificate_and_is_not_connected_to(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            token = engine.enrollment.create_token().token
            identity = await join(engine, tmp_path / "host", token=token)
            host_id = identity.get().id
            await engine.administration.forget("two")
            with pytest.raises(JoinRefusedError, match="not registered with the engine"):
                await asyncio.to_thread(joining.renew, identity)
            with pytest.raises(NotFoundError):
                engine.hosts.make_client_context(host_id)
            with pytest.raises(JoinRefusedError, match="removed from the engine"):  # also not with the old token
                await join(engine, tmp_path / "host", token=token)
            await join(engine, tmp_path / "host")  # a new token is needed
            assert identity.get().id != host_id


async def test_a_host_leaves_when_it_has_no_sandboxes(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            identity = await join(engine, tmp_path / "host")
            engine.sandboxes[identity.get().id] = 3
            with pytest.raises(JoinRefusedError, match="still has 3 sandboxes"):
                await asyncio.to_thread(joining.leave, identity)
            assert identity.find() is not None
            await asyncio.to_thread(partial(joining.leave, identity, force=True))
        assert engine.hosts.list_records() == []
        assert identity.find() is None
        assert not identity.key_path.exists()


async def test_only_the_host_itself_can_leave(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            identity = await join(engine, tmp_path / "host")
            body = {
                "certificateRequest": make_certificate_request(identity.load_key()),  # which anyone may have seen
                "signature": sign_leave(ec.generate_private_key(ec.SECP256R1()), identity.get().id),
            }
            assert (await post(engine, "/leave", body)).status_code == 401
        assert len(engine.hosts.list_records()) == 1


async def test_attempts_are_limited(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now())
    with open_engine(tmp_path / "engine", clock) as engine:
        async with engine.serve(clock):
            body = {"token": "x", "secret": "y", "certificateRequest": "z", "name": "n", "port": 1}
            statuses = [(await post(engine, "/join", body)).status_code for _ in range(22)]
            assert statuses == [401] * 20 + [429] * 2
            await clock.advance(3)
            assert (await post(engine, "/join", body)).status_code == 401


async def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        async with engine.serve():
            token = engine.enrollment.create_token().token
            body = {"token": token.id, "secret": token.secret.reveal(), "name": "n", "port": 1}
            for request in ("", "x", make_certificate_request(ec.generate_private_key(ec.SECP384R1()))):
                assert (await post(engine, "/join", {**body, "certificateRequest": request})).status_code == 400
            too_large = {**body, "certificateRequest": "x" * 17_000}
            assert (await post(engine, "/join", too_large)).status_code == 413
            assert (await post(engine, "/hosts", body)).status_code == 404
        assert engine.hosts.list_records() == []


async def test_an_engine_that_does_not_respond_is_reported(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine, pytest.raises(UnreachableError, match="--join-address"):
        await join(engine, tmp_path / "host")


async def test_what_answers_instead_of_an_engine_is_not_read_without_end(tmp_path: Path) -> None:
    """Whoever intercepts the connection could otherwise take all memory."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(16):
            await send({"type": "http.response.body", "body": b"[" * (1 << 16), "more_body": True})

    with open_engine(tmp_path / "engine") as engine:
        context = engine.authority.get_join_context()
        async with serve_app(answer, ssl_context_factory=lambda *_: context) as port:
            engine.enrollment.address = f"127.0.0.1:{port}"
            with pytest.raises(UnreachableError, match="too large"):
                await join(engine, tmp_path / "host")


def test_tokens_are_one_word_and_damaged_ones_are_recognised(tmp_path: Path) -> None:
    token = JoinToken("[::1]:3010", "a" * 64, "abc", Secret("s3cret"))
    text = token.encode().reveal()
    assert text.replace("-", "").replace("_", "").isalnum()
    assert JoinToken.parse(f" {text}\n") == token
    for damaged in (text[:-3], text + "AA", "syj_", text.replace("_", "_!", 1)):
        with pytest.raises(InvalidInputError, match="damaged"):
            JoinToken.parse(damaged)
    with pytest.raises(InvalidInputError, match="not a join token"):
        JoinToken.parse("e2b_123")


def test_a_token_is_stored_as_a_hash(tmp_path: Path) -> None:
    with open_engine(tmp_path / "engine") as engine:
        secret = engine.enrollment.create_token().token.secret.reveal()
        stored = repr(engine.database.query("SELECT * FROM join_tokens"))
        assert secret not in stored
        with pytest.raises(InvalidInputError, match="1 minute to 7 days"):
            engine.enrollment.create_token(3)


async def test_the_engines_certificate_for_hosts_is_renewed(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now() - 7 * 24 * 3600)
    authority = HostAuthority.load(tmp_path / "ca", clock)
    context = authority.get_client_context()
    key = ec.generate_private_key(ec.SECP256R1())
    identity = HostIdentity(tmp_path / "host")
    identity.prepare_certificate_request()
    files.write(identity.authority_path, authority.pem, 0o644)
    files.write(identity.key_path, files.encode_key(key), 0o600)
    await clock.advance(7 * 24 * 3600)
    files.write(identity.certificate_path, authority.issue("host-1", key.public_key()).pem, 0o644)
    server = HostServerTls(identity).context
    with pytest.raises(ssl.SSLError):  # expired
        handshake(server, context, "host-1")
    assert authority.get_client_context() is context
    handshake(server, context, "host-1")


def make_client(host: HostIdentity, certified: HostIdentity | None = None) -> ssl.SSLContext:
    """Return a client that trusts the authority of this host, and shows the certificate of the other one."""
    context = ssl.create_default_context(cafile=str(host.authority_path))
    if certified is not None:
        context.load_cert_chain(certified.certificate_path, certified.key_path)
    return context


def make_server(host: HostIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(host.certificate_path, host.key_path)
    return context


async def post(engine: EngineSide, path: str, body: dict[str, Any]) -> httpx.Response:
    context = ssl.create_default_context(cadata=engine.authority.pem.decode())
    assert compute_fingerprint(engine.authority.pem) == engine.authority.fingerprint
    async with httpx.AsyncClient(base_url=f"https://{engine.enrollment.address}", verify=context) as client:
        return await client.post(path, json=body, extensions={"sni_hostname": "engine"})
