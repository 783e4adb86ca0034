"""Coding agents. A turn is one prompt and the agent's work on it; a run is one process of an agent in a sandbox.

`catalogue` has the agents to choose from, `runner.turns` their turns, `questions.service` what they ask, and `trials`
tests them.
"""
