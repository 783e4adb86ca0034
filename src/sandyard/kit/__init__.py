"""Small things every part may use. No product nouns live here."""
