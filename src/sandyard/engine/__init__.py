"""Sandboxes, templates and snapshots, served over the E2B protocol. Has no notion of users, tasks, git or forges."""
