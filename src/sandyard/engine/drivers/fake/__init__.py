"""A driver without root and without isolation: for tests, and for a look at the engine where nothing else works.

A fake sandbox is a directory and a plain guest agent process beside the engine. Its commands run on the host as
whoever runs the engine, its ports are the host's. Nothing is protected from anything. It survives restarts of the
engine as every driver does, and it can be slow, stuck or broken on request.
"""
