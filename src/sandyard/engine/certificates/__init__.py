"""The engine's own certificates: an authority per folder, the leaves it issues, and what the TLS port shows its clients."""
