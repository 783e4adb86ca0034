"""Docker in a gVisor sandbox: `service` starts dockerd when a client connects to its socket, `oci_runtime` makes `docker
exec` work. Both are programs of their own, started with the agent's Python."""
