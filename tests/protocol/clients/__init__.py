"""Programs of others that use E2B, and what they do here: `clients.toml` says which, a script each what."""
