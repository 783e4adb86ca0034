"""Limits, accounting, freezing and killing with cgroups: version 2, version 1, or both side by side.

Each engine has its own directory in every hierarchy it uses, named after its instance; a sandbox's group is a directory
in it, named after the sandbox. Any directory there that belongs to no sandbox is a leftover of this engine.
"""

from sandyard.engine.drivers.machine.cgroups.discovery import Hierarchy, discover_hierarchies
from sandyard.engine.drivers.machine.cgroups.io import IoLimits
from sandyard.engine.drivers.machine.cgroups.tree import MIN_SOCKET_MEMORY, Cgroups, SocketMemory

__all__ = ["MIN_SOCKET_MEMORY", "Cgroups", "Hierarchy", "IoLimits", "SocketMemory", "discover_hierarchies"]
