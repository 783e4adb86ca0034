"""Root file systems for sandboxes: which exist on this machine, how each is built, and which name refers to which.

The engine uses `catalogue.Catalogue`. A template is one or more read-only directories in a folder that all engines of
the machine share. Nothing is changed once it is published, because running sandboxes use it.
"""
