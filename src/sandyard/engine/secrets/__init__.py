"""Secrets: written by clients, inserted into requests that leave sandboxes, and never readable through the API."""
