"""REST, SSE and WebSocket: parse, authorise, call the domain, serialise."""
