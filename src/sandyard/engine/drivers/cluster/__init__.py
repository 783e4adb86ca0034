"""Sandboxes on several hosts: the driver of this machine, and host services on other machines."""
