"""Git in a sandbox: the checkout of a session, and the programs that work on it there."""
