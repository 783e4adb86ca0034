"""HTTP/1.1 and the Connect protocol over one socket. Knows nothing of processes and files."""
