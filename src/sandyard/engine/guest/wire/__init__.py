"""HTTP/1.1 and the Connect protocol over one socket. Independent of processes and files."""
