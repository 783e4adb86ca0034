"""Secrets: values that can be written but are revealed only to the platform itself."""
