"""SSH and browser editors in a sandbox: SSH without an open port, and an editor behind a preview."""
