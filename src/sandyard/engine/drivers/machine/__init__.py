"""The driver for sandboxes on this machine, and what its runtimes share: network, store, cgroups, slots, kernel calls."""
