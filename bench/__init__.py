"""What the engine costs, through the unmodified Python SDK, beside a floor measured in the same run."""
