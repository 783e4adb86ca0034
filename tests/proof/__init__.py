"""`make proof`: try what the README claims, count what was tried and lost, and write docs/proof.md."""
