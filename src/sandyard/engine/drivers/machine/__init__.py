"""What drivers that run sandboxes on this machine share: network, copy-on-write store, cgroups, slots and kernel calls."""
