"""The way out for requests that a rule adds headers to: secrets are put in here, on the engine's side of the cable.

TCP connections to ports 80 and 443 of a sandbox that has rules are redirected here by the firewall, which has asked its
policy first. What is not for a rule's host is passed on byte by byte to where it was going. For a rule's host the proxy
is the server: it shows a certificate of the engine's authority, reads HTTP/1.1, sets the headers, and sends the request
to the host as it finds it itself, over TLS that it checks.

What holds, whatever a sandbox tries
- The proxy reaches nothing that the sandbox could not: every connection it opens begins in the sandbox's own network
  namespace, and meets the same rules of the same firewall.
- Where a request with a secret goes is never the sandbox's word: the name is resolved by the host's name servers, the
  certificate must be that name's, and the request must be for that very host. Over plain HTTP no secret is sent.
- What the server reads as one request is what was read as one here: requests are parsed and written anew.
- Connections, their rate, heads and waiting are bounded, for one sandbox and for all.

A sandbox can go around it (another port, HTTP/3, a mark on its packets): then nothing is added.
"""
