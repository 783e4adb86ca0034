"""A frozen sandbox's memory to disk and back, with CRIU. Optional: where CRIU is missing, nothing else changes.

`checkpoint` is what the driver uses. `child` runs in a process of its own that becomes CRIU, `scan` reads what a frozen
sandbox consists of, and `probe` proves on this machine that all of it works.

CRIU knows containers whose namespaces all belong to their user namespace. A sandbox is not one: its mount namespace
belongs to the host's root, and its agent, forked and never exec'ed, has the host's Python mapped. `child` bridges both.

What comes back: processes with their ids, threads, memory, open and deleted files, pipes, terminals, unix and
listening sockets, timers, watches, locks, POSIX shared memory. What doesn't: established TCP connections (they are
found closed), unread events of file watches, and files made in `/dev`. What can't be dumped, with the sandbox left
frozen as it was: System V shared memory, io_uring, a process in namespaces of its own, open connections to the agent.

After a restore the sandbox's mount, pid and time namespaces belong to its own user namespace instead of the host's.
Its root still has no power over them, by the capability bounding set and the seccomp filter, which come back too; but
that is one layer of defence less. And memory that the agent shared with its zygote is its own from then on: 12 MB.
"""
