"""Where branches become pull requests: GitHub, or a plain git remote."""
