"""`sandyard git`: a module for each kind of thing that is done in a checkout."""
