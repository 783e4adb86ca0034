"""Prepared snapshots: a checkout in which the project's setup has run and the agent is installed, made once and started from often."""
