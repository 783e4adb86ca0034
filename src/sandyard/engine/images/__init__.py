"""OCI and Docker images as root file systems: pulled or read, verified, unpacked layer by layer, and adapted to
sandboxes."""
