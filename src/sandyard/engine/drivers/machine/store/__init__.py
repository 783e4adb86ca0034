"""The store of sandboxes' writable directories and snapshots: copy-on-write on btrfs, or plain directories.

`base` is the common interface. `cow` uses btrfs: `btrfs` contains its ioctls, `image` creates a btrfs if the machine
has none, `guard` keeps the machine's disk from filling up. `plain` works everywhere, copies instead of sharing, and has
no disk limit.
"""
