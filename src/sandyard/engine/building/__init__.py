"""Templates made from a list of steps: each runs in a sandbox, and what it leaves is kept as a layer."""
