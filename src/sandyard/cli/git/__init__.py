"""`sandyard git`: one module per kind of operation on a checkout."""
