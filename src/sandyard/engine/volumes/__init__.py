"""Volumes: directories that outlive sandboxes, mounted in several of them and reachable without any.

`service` knows which there are, `mounts` checks where they may go, and `content` is what the host does with the files in one:
every path in there may have been laid as a trap by a sandbox, so `beneath` is the only way in.
"""
