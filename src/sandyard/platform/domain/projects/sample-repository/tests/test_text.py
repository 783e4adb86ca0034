import unittest

from words import initials, shorten, slug, word_count


class TextTest(unittest.TestCase):
    def test_words_are_counted(self) -> None:
        self.assertEqual(word_count(""), 0)
        self.assertEqual(word_count("one"), 1)
        self.assertEqual(word_count("one two three"), 3)

    def test_what_fits_stays(self) -> None:
        self.assertEqual(shorten("short", 10), "short")

    def test_what_is_too_long_ends_in_an_ellipsis(self) -> None:
        self.assertTrue(shorten("a rather long sentence", 8).endswith("…"))

    def test_slugs(self) -> None:
        self.assertEqual(slug("Hello, World!"), "hello-world")

    def test_initials(self) -> None:
        self.assertEqual(initials("Ada Lovelace"), "AL")
