"""The yard for other agents, by the Model Context Protocol."""
