"""Hosts on the nodes of a Ray cluster. Only the sidecar and the nodes import Ray, never the engine."""
