"""Small functions for text."""

from words.text import initials, shorten, slug, word_count

__all__ = ["initials", "shorten", "slug", "word_count"]
