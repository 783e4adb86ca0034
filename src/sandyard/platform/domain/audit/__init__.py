"""Who did what, when: only ever added to."""
