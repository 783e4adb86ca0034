"""From a repository to a checkout, and from commits in a sandbox to a branch on the forge."""
