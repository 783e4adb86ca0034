"""Git on this machine: remotes, the mirror of each project's repository, and reads from any repository."""
