"""A TLS handshake in memory, as OpenSSL's clients make it."""

from __future__ import annotations

import ssl

from cryptography import x509


def shake(server: ssl.SSLContext, trusted: bytes, name: str | None) -> x509.Certificate:
    """The certificate that a client which trusts this authority is shown. Raises ssl.SSLError as the client does."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=trusted.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.set_alpn_protocols(["h2", "http/1.1"])
    if name is None:
        client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ours.selected_alpn_protocol() == "http/1.1"
    shown = ours.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)
