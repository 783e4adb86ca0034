"""A driver without root and without isolation: for tests, and for trying the engine where nothing else works.

A fake sandbox is a directory and a plain guest agent process next to the engine. Its commands run on the host as the
engine's user, and its ports are the host's. Nothing is protected. It survives restarts of the engine like every driver,
and it can be made slow, stuck or broken for tests.
"""
