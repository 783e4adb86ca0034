"""Run the turns of sessions: queue prompts, run the agent's process, and apply what it sends."""
