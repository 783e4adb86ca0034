"""OCI and Docker images as root file systems: pulled or read, checked, unpacked layer by layer, and made fit for a sandbox."""
