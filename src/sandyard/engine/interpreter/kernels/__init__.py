"""What runs in the template's own Python: the fork server and the kernels it makes.

Nothing here is imported by the engine or by the server: it needs ipykernel, which is the template's.
"""
