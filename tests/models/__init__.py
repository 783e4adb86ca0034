"""Model servers to test against: real HTTP in the shapes of the real APIs, and a script instead of a mind.

    from tests.models import ModelServer, Say, Shell

    with ModelServer() as models:
        models.script("mend the login", [Shell("make test"), Say("It is mended.")])

Only the standard library, so that it runs inside a sandbox as well.
"""

from __future__ import annotations

from tests.models.asked import Call
from tests.models.server import Conversation, ModelServer
from tests.models.steps import Cut, Edit, Fail, Hang, Read, Say, Shell, Step, Usage, Use, UseMcp, Write

__all__ = [
    "Call",
    "Conversation",
    "Cut",
    "Edit",
    "Fail",
    "Hang",
    "ModelServer",
    "Read",
    "Say",
    "Shell",
    "Step",
    "Usage",
    "Use",
    "UseMcp",
    "Write",
]
