"""Persistent state: the data directory, its lock, the SQLite database in it, and the API keys.

Repositories of other nouns live with those nouns; they all write through `Database`.
"""
