"""Commits out of a sandbox into the mirror. What a sandbox says of them is not believed: what counts is what came.

The mirror has the work of all sessions of a project. A sandbox that merely names a commit of another one does not get it: it brings
what is new, or what is its own already, or on the remote.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import or_, select

from sandyard.platform.db.models import Checkout, Checkpoint
from sandyard.platform.domain.git.errors import UnsafeBundleError
from sandyard.platform.domain.git.ground import Ground
from sandyard.platform.domain.git.guest import Guest
from sandyard.platform.domain.git.mirror import Mirror

HEADS = "refs/sandyard/sandboxes/"
CHECKPOINTS = "refs/sandyard/checkpoints/"
_FOREIGN = "The sandbox sent a commit of another sandbox, which was rejected."


def head_ref(sandbox_id: str) -> str:
    """Where the mirror has the newest commit that came out of a sandbox."""
    return f"{HEADS}{sandbox_id}/head"


def checkpoint_ref(checkpoint_id: str) -> str:
    return CHECKPOINTS + checkpoint_id


async def bring(ground: Ground, row: Checkout, guest: Guest, *, ref: str, into: str, known: Sequence[str] = ()) -> str:
    """What `ref` of the checkout names, as `into` in the mirror, which has the `known` commits of it already. The commit it is
    there. UnsafeBundleError when that is none of the sandbox's own."""
    mirror = ground.mirrors.of(row.project_id)
    mine = await own_refs(ground, row)
    with ground.transfer() as path:
        sent = await guest.send(path, ref=ref, have=[row.head, row.base_commit, *known])
        if path.exists():
            commit = (await mirror.take(path, {sent.ref: into}))[into]
        elif await is_own(mirror, sent.commit, mine):
            commit = sent.commit
            await mirror.set_ref(into, commit)
        else:
            raise UnsafeBundleError(_FOREIGN)
    return commit


async def own_refs(ground: Ground, row: Checkout) -> list[str]:
    """All that came out of the sandboxes of this session, or of this sandbox, if it has no session."""
    same = [Checkout.sandbox_id == row.sandbox_id]
    kept = [Checkpoint.sandbox_id == row.sandbox_id]
    if row.session_id is not None:
        same.append(Checkout.session_id == row.session_id)
        kept.append(Checkpoint.session_id == row.session_id)
    async with ground.database.reading() as session:
        sandboxes = await session.scalars(select(Checkout.sandbox_id).where(or_(*same)))
        checkpoints = await session.scalars(select(Checkpoint.id).where(or_(*kept)))
        return [*(head_ref(one) for one in sandboxes), *(checkpoint_ref(one) for one in checkpoints)]


async def is_own(mirror: Mirror, commit: str, mine: Sequence[str]) -> bool:
    return await mirror.reaches(commit, mine) or await mirror.on_remote(commit)
