"""Forges: GitHub, or a plain Git remote without pull requests."""
