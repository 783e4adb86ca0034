"""Volumes: directories that outlive sandboxes. Several sandboxes can mount one, and its files are accessible without
any.

`service` keeps the list of volumes, `mounts` checks where they may be mounted, and `content` is what the host does with
their files. Sandboxes control every path in a volume and may set traps, so all access goes through `descriptors`.
"""
