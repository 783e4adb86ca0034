"""Builds templates from a list of steps: each step runs in a sandbox, and its result is kept as a layer."""
