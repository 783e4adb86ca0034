"""`sandyard support-bundle`: what somebody needs to know to help with a problem, without secrets."""
