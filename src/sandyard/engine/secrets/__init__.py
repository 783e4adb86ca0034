"""Secrets: written by clients, filled into requests that leave sandboxes, and readable by nobody."""
