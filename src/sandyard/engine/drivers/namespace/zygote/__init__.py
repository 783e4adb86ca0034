"""The warm parent of all sandboxes: a small process with one thread that has the guest agent loaded and forks it on request.

It uses the standard library only, holds no secret and keeps no state the engine could not give it again: when it dies, the
driver starts another one and no sandbox notices. `main` is its loop, `home` the little root it lives in, `child` what a
sandbox's first process does until it is the agent, `rootfs` its mounts, `confine` its privileges.
"""
