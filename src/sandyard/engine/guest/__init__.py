"""The guest agent: runs inside a sandbox and serves E2B's envd protocol on a given socket. Standard library only.

Call `prepare()` in the process that agents are forked from, then `serve(socket, config)` in each fork, which never
returns. `python -m sandyard.engine.guest --socket PATH` runs a single agent.
"""

from sandyard.engine.guest.agent import prepare, serve
from sandyard.engine.guest.config import GuestConfig

__all__ = ["GuestConfig", "prepare", "serve"]
