"""A repository and how to work on it."""
