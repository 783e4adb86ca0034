"""What answers at the host names of previews, before anything of the platform's own is asked."""
