"""Move a frozen sandbox's memory to disk and back with CRIU. Optional: without CRIU, nothing else changes.

The driver uses `checkpoint`. `child` runs in a separate process that becomes CRIU, `scan` reads what a frozen sandbox
consists of, and `probe` tests on this machine that all of it works.

CRIU supports containers whose namespaces all belong to their user namespace. A sandbox is different: its mount
namespace belongs to the host's root, and its agent, forked without exec, has the host's Python mapped. `child` handles
both.

Restored: processes with their ids, threads, memory, open and deleted files, pipes, terminals, unix and listening
sockets, timers, watches, locks, POSIX shared memory. Not restored: established TCP connections (they are closed),
unread events of file watches, and files created in `/dev`. Not supported (the sandbox stays frozen): System V shared
memory, io_uring, a process in its own namespaces, open connections to the agent.

After a restore the sandbox's mount, pid and time namespaces belong to its own user namespace instead of the host's. Its
root still has no power over them, because of the capability bounding set and the seccomp filter, which are restored
too; but that is one layer of defence less. Memory that the agent shared with its zygote is private from then on: 12 MB.
"""
