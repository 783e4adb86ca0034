"""`sandyard project`: a repository, what opens it, how it is worked on, and by whom."""
