"""Where sandboxes' writable directories and snapshots live: copy-on-write on btrfs, or plain directories.

`base` is what both are. `cow` stands on btrfs: `btrfs` are its ioctls, `image` makes a btrfs where the machine has none, `guard` keeps
the machine's disk from filling. `plain` serves everywhere, copies instead of sharing, and has no disk limit.
"""
