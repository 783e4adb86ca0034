"""The parent of all sandboxes: a small process with one thread that has the guest agent loaded and forks it on request.

It uses only the standard library, holds no secrets and keeps no state that the engine could not provide again: if it
dies, the driver starts another one and sandboxes are not affected. `main` is its loop, `zygote_root` its small
root file system, `child` what a sandbox's first process does until it is the agent, `rootfs` its mounts, `confine` its
privileges.
"""
