"""Projects: a repository and its settings."""
