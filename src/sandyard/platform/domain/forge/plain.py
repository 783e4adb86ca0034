"""A plain git remote: it has no pull requests, so the work ends at the pushed branch and a place where it can be compared."""

from __future__ import annotations

from sandyard.platform.domain.forge.model import Pull, PullState
from sandyard.platform.domain.git.ground import compare_url
from sandyard.platform.settings import PlatformSettings


def pushed(settings: PlatformSettings, project_id: str, *, title: str, base: str, head: str, head_commit: str) -> Pull:
    """What a pushed branch is in place of a pull request."""
    return Pull(
        number=None,
        url=compare_url(settings, project_id, base, head),
        title=title,
        state=PullState.PUSHED,
        draft=False,
        head=head,
        base=base,
        head_commit=head_commit,
    )
