"""Run a TLS handshake in memory with an OpenSSL client."""

from __future__ import annotations

import ssl

from cryptography import x509


def complete_handshake(server: ssl.SSLContext, trusted: bytes, name: str | None) -> x509.Certificate:
    """Return the server certificate that a client trusting `trusted` receives. Raises the client's ssl.SSLError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=trusted.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.set_alpn_protocols(["h2", "http/1.1"])
    if name is None:
        client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname=name)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (client_end, server_end):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client_end.selected_alpn_protocol() == "http/1.1"
    der = client_end.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)
