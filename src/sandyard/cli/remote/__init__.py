"""`sandyard ssh` and `sandyard ssh-config`: sandboxes as SSH hosts, for people and editors."""
