"""The control API: E2B's REST routes, v1 and v2, over the sandbox service. Parse, authorise, call, serialise."""
