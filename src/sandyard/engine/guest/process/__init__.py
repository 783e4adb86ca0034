"""The sandbox's processes: starting them, their output and input, and the Process service."""
