"""What runs in the template's own Python: the fork server and its kernels.

Neither the engine nor the server imports this: it needs ipykernel, which is part of the template.
"""
