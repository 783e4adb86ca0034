"""Transfer commits from a sandbox to the mirror. Only the received data counts, not what the sandbox says about it.

The mirror holds the work of all sessions of a project. A sandbox cannot obtain a commit of another one by naming it:
the commit must be new, the sandbox's own, or on the remote.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import or_, select

from sandyard.platform.db.models import Checkout, Checkpoint, GitOperation
from sandyard.platform.domain.git.checkout.sandbox_git import SandboxGit
from sandyard.platform.domain.git.context import GitContext
from sandyard.platform.domain.git.model import OperationKind
from sandyard.platform.domain.repositories.bundle_import import FOREIGN_COMMIT
from sandyard.platform.domain.repositories.errors import UnsafeBundleError
from sandyard.platform.domain.repositories.mirror import Mirror

HEAD_REFS = "refs/sandyard/sandboxes/"
CHECKPOINT_REFS = "refs/sandyard/checkpoints/"


def make_head_ref(sandbox_id: str) -> str:
    """Return the mirror's ref for the newest commit that came from a sandbox."""
    return f"{HEAD_REFS}{sandbox_id}/head"


def make_copied_ref(sandbox_id: str) -> str:
    """Return the mirror's ref for the commit that a copy of a sandbox had when it was made."""
    return f"{HEAD_REFS}{sandbox_id}/copied"


def make_checkpoint_ref(checkpoint_id: str) -> str:
    return CHECKPOINT_REFS + checkpoint_id


async def import_commits(
    context: GitContext,
    row: Checkout,
    git: SandboxGit,
    *,
    ref: str,
    into: str,
    known: Sequence[str] = (),
    also_own: Sequence[str] = (),
) -> str:
    """Transfer what `ref` of the checkout names to the ref `into` of the mirror, which has the `known` commits already.

    Returns the commit. Raises UnsafeBundleError if it is neither the sandbox's own nor reachable from the refs in `also_own`.
    """
    mirror = context.mirrors.get(row.project_id)
    own_refs = [*await list_own_refs(context, row), *also_own]
    with context.create_transfer_file() as path:
        sent = await git.send(path, ref=ref, have=[row.head, row.base_commit, *known])
        if path.exists():
            commit = (await mirror.import_bundle(path, {sent.ref: into}, own_refs=own_refs))[into]
        elif await is_own_commit(mirror, sent.commit, own_refs):
            commit = sent.commit
            await mirror.set_ref(into, commit)
        else:
            raise UnsafeBundleError(FOREIGN_COMMIT)
    return commit


async def list_own_refs(context: GitContext, row: Checkout) -> list[str]:
    """Return the refs of everything that came from the sandboxes of this session, or from this sandbox if it has no session."""
    own_checkouts = [Checkout.sandbox_id == row.sandbox_id]
    own_checkpoints = [Checkpoint.sandbox_id == row.sandbox_id]
    if row.session_id is not None:
        own_checkouts.append(Checkout.session_id == row.session_id)
        own_checkpoints.append(Checkpoint.session_id == row.session_id)
    async with context.database.reading() as session:
        sandboxes = await session.scalars(select(Checkout.sandbox_id).where(or_(*own_checkouts)))
        checkpoints = await session.scalars(select(Checkpoint.id).where(or_(*own_checkpoints)))
        return [*map(make_head_ref, sandboxes), *map(make_checkpoint_ref, checkpoints)]


async def list_refs_of_original(context: GitContext, original_id: str) -> list[str]:
    """Return the refs of what a copy of this sandbox may have had from the beginning.

    The original's commits may be in the mirror only because another copy was the first to send them.
    """
    copy_of = GitOperation.arguments["copyOf"].as_string()
    async with context.database.reading() as session:
        original = await session.get(Checkout, original_id)
        copies = await session.scalars(
            select(GitOperation.sandbox_id).where(GitOperation.kind == OperationKind.BRANCH, copy_of == original_id)
        )
        refs = [make_copied_ref(copy_id) for copy_id in copies if copy_id is not None]
    return refs if original is None else [*refs, *await list_own_refs(context, original)]


async def is_own_commit(mirror: Mirror, commit: str, own_refs: Sequence[str]) -> bool:
    """Return whether the commit is reachable from one of these refs or from a branch of the remote."""
    return await mirror.is_reachable(commit, own_refs) or await mirror.is_on_remote(commit)
