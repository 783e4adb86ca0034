"""The files of volumes in directories of this machine: what drivers return from `get_volume_files`.

`files` implements the operations with threads, `content` and the other modules with blocking system calls. Sandboxes
control every path in a volume and may set traps, so all access goes through `descriptors`.
"""
