"""Check out repositories in sandboxes and push commits from sandboxes to branches on the forge."""
