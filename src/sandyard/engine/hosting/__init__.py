"""The host service: a process on each machine of a cluster that runs sandboxes for an engine on another machine."""
