"""Scenarios of two public benchmarks of sandbox escapes, tried at every isolation level.

`scenarios.py` lists them with the outcome at each level, `attempts.py` and `tests/acceptance/attacks.py` try them, and
`make isolation` runs them all and writes docs/isolation.md.
"""
