"""`sandyard backup` and `sandyard restore`: everything of an installation that cannot be created again, in one encrypted file."""
