"""The built-in agents, one module each."""

from __future__ import annotations

from sandyard.platform.domain.agents.profiles.claude import CLAUDE
from sandyard.platform.domain.agents.profiles.codex import CODEX
from sandyard.platform.domain.agents.profiles.demo import DEMO
from sandyard.platform.domain.agents.profiles.gemini import GEMINI
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.agents.profiles.opencode import OPENCODE

_ALL: tuple[Profile, ...] = (OPENCODE, CLAUDE, CODEX, GEMINI, DEMO)
BUILT_IN: dict[str, Profile] = {profile.name: profile for profile in _ALL}
"""By name, in the order in which they are shown."""
