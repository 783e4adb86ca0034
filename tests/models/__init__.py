"""Model servers to test against: real HTTP in the formats of the real APIs, with a script instead of a model.

    from tests.models import ModelServer, Say, Shell

    with ModelServer() as models:
        models.script("mend the login", [Shell("make test"), Say("It is mended.")])

Uses only the standard library, so that it also runs in a sandbox.
"""

from __future__ import annotations

from tests.models.requests import Call
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
