"""Disk use of an engine's machine, and freeing what is no longer needed."""
