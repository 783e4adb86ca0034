"""Limits, accounting, freezing and killing through cgroups: version 2, version 1, or both beside each other.

Each engine has a directory of its own in every hierarchy it uses, named after its instance; a sandbox's group is a directory in
there, named after the sandbox. Whatever lies there and belongs to no sandbox is garbage of this engine and of nobody else.
"""

from sandyard.engine.drivers.namespace.cgroups.discovery import Hierarchy, discover
from sandyard.engine.drivers.namespace.cgroups.io import IoLimits
from sandyard.engine.drivers.namespace.cgroups.tree import LEAST_SOCKETS, Cgroups, SocketMemory

__all__ = ["LEAST_SOCKETS", "Cgroups", "Hierarchy", "IoLimits", "SocketMemory", "discover"]
