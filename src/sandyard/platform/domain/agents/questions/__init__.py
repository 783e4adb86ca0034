"""Asks: permission requests and questions of agents, which the project's policy or a person answers."""
