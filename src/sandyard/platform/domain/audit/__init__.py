"""Append-only audit log: who did what, and when."""
