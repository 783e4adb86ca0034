"""Middleware that serves the host names of previews, before any of the platform's own routes."""
