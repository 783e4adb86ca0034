"""The sandbox's files: the Filesystem service, uploads and downloads."""
