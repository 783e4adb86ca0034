"""Find which methods of the SDKs and commands of the CLI work, from the packages and the calls of passing tests.

`make compatibility` runs the protocol tests with recording enabled and writes docs/e2b-compatibility.md.
"""
