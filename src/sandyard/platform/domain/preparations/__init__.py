"""Prepared snapshots: a checkout in which the project's setup has run and the agent is installed, created once and reused."""
