"""Root file systems that sandboxes start from: what exists on this machine, how each is made, which name means which.

`catalogue.Catalogue` is what the engine asks. A template is one or more read-only directories in a folder that all
engines of the machine share; nothing is changed once it is published, because running sandboxes stand on it.
"""
