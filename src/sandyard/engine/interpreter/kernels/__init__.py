"""The fork server and its kernels, which run in the template's own Python.

Neither the engine nor the server imports this: it needs ipykernel, which is part of the template.
"""
