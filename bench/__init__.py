"""Measure the engine through the unmodified Python SDK, next to a floor measured in the same run."""
