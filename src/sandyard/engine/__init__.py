"""Sandboxes, templates and snapshots, spoken to in the E2B protocol. Knows no users, tasks, git or forge."""
