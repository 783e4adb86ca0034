"""Sandyard: every coding agent gets its own computer; every task ends in a pull request."""

__version__ = "0.1.0"
