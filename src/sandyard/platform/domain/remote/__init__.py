"""Editors and shells of people, in a sandbox: SSH without a port, and an editor behind the previews."""
