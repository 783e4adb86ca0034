"""Acceptance tests: what a user does, and failures that must not affect them."""
