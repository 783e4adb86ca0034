"""`sandyard setup`: install what this machine lacks."""
