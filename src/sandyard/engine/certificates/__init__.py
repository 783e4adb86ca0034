"""The engine's own certificates: an authority per folder, the leaf certificates it issues, and the certificates of the
TLS port."""
