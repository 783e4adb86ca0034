"""Images for tests, made by hand: every byte of a layer, a manifest and an index is one a test may want to be wrong."""
