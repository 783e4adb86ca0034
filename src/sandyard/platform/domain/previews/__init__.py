"""What listens inside a sandbox, and how a browser sees it: on an origin of its own, by people who may see the sandbox."""
