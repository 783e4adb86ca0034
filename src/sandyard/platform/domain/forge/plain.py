"""A plain Git remote: it has no pull requests, so the work ends at the pushed branch, which can be compared and merged here."""

from __future__ import annotations

from datetime import datetime

from sandyard.platform.db.models import PullRequest
from sandyard.platform.domain.forge.model import Pull, PullState
from sandyard.platform.domain.git.context import compare_url
from sandyard.platform.settings import PlatformSettings


def pushed(settings: PlatformSettings, project_id: str, *, title: str, base: str, head: str, head_commit: str) -> Pull:
    """Return a pushed branch in place of a pull request."""
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


def merged(row: PullRequest, now: datetime) -> Pull:
    """Return a pushed branch that was merged into its base."""
    return Pull(
        number=None,
        url=row.url,
        title=row.title,
        state=PullState.MERGED,
        draft=False,
        head=row.head_branch,
        base=row.base_branch,
        head_commit=row.head_commit or "",
        merged_at=now,
        closed_at=now,
    )
