"""Connect other agents to the server with the Model Context Protocol."""
