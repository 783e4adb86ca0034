"""Regular expressions for the tests of their limits."""

from __future__ import annotations

COMPLEX = "[ab]*a" + "[ab]{1000}" * 15 + "c"
"""Took 17 s for 100 kB of text while its size was not limited."""
