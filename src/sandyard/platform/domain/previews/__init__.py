"""Previews of ports in a sandbox: each has its own origin, and only people who may see the sandbox have access."""
