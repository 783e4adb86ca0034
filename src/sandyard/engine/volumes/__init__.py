"""Volumes: directories that outlive sandboxes. Several sandboxes can mount one, and its files are accessible without
any.

`service` keeps the list of volumes, and `mounts` checks where they may be mounted. The driver has their files.
"""
