"""`sandyard project`: repositories with their credentials, settings and members."""
