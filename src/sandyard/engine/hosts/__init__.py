"""The machines that run sandboxes for this engine: their records, how they join, and their certificates."""
