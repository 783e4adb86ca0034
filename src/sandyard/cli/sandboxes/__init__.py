"""`sandyard sandbox`: a module for each verb that is more than one request."""
