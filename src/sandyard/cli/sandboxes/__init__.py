"""`sandyard sandbox`: one module for each command that takes more than one request."""
