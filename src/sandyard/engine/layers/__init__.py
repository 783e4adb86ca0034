"""The layer store: snapshots that survive the loss of this machine, in a directory or in S3.

A snapshot is *durable* when all its layers and then its manifest are in the store. Any engine with the same store can
create sandboxes from it.
"""
