"""The proxy for requests to which a rule adds headers: secrets are inserted here, outside the sandbox.

The firewall redirects TCP connections to ports 80 and 443 of a sandbox with rules here, after checking its policy.
Traffic that is not for a rule's host is forwarded unchanged to its destination. For a rule's host the proxy acts as the
server: it presents a certificate of the engine's authority, reads HTTP/1.1, sets the headers, and sends the request to
the host, which it resolves itself, over verified TLS.

Guarantees, also against a hostile sandbox
- The proxy reaches nothing that the sandbox could not: every connection it opens starts in the sandbox's own network
  namespace, and passes the same rules of the same firewall.
- The sandbox never decides where a request with a secret goes: the name is resolved by the host's name servers, the
  certificate must be valid for that name, and the request must be for exactly that host. Secrets are never sent over
  plain HTTP.
- The server sees exactly the requests that were parsed here, because requests are parsed and written again.
- Connections, their rate, heads and waiting times are limited, for one sandbox and for all.

A sandbox can bypass it (another port, HTTP/3, a mark on its packets): then nothing is added.
"""
