"""The guest agent: runs inside a sandbox and speaks E2B's envd protocol on a socket it is given. Standard library only.

`prepare()` in the process agents are forked from, then `serve(socket, config)` in each forked one, which never returns.
`python -m sandyard.engine.guest --socket PATH` runs one on its own.
"""

from sandyard.engine.guest.agent import prepare, serve
from sandyard.engine.guest.config import GuestConfig

__all__ = ["GuestConfig", "prepare", "serve"]
