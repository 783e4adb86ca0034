"""Images for tests, built byte by byte, so that a test can corrupt any part of a layer, a manifest or an index."""
