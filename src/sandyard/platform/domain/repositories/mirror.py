"""Mirrors: the platform's full copy of each project's repository. Sandboxes get their commits from it and send commits
to it.

`refs/remotes/origin/*` and `refs/tags/*` mirror the remote; `refs/sandyard/…` holds what came from sandboxes.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from sandyard.platform.domain.repositories import merge_tree, push
from sandyard.platform.domain.repositories.bare_repository import (
    COMMIT,
    OBJECT_LIMIT,
    READ_TIMEOUT_S,
    BareRepository,
    ConcurrencyLimits,
    list_remote_refs,
    parse_refs,
)
from sandyard.platform.domain.repositories.bundle_import import import_bundle
from sandyard.platform.domain.repositories.bundles import BundleStore
from sandyard.platform.domain.repositories.error_translation import TOO_LARGE
from sandyard.platform.domain.repositories.errors import RemoteMissingError, TooMuchError
from sandyard.platform.domain.repositories.git_process import MEMORY, Git
from sandyard.platform.domain.repositories.model import Bundle, Conflicts, Credential, Progress, no_progress
from sandyard.platform.domain.repositories.push import RemoteConnection, RetryPolicy
from sandyard.platform.domain.repositories.remote import Remote
from sandyard.platform.settings import PlatformSettings

HEADS, ORIGIN, TAGS = "refs/heads/", "refs/remotes/origin/", "refs/tags/"
OWN_TAGS = "refs/sandyard/tags/"
_MAX_PACKS = 20
_MAX_CONCURRENT_TAKES = 4
"""Limit across all mirrors: data from a sandbox may use all the time and memory it is allowed."""
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SUBMODULES = "The repository has submodules, which are not checked out: their folders are empty."
_LFS = "The repository uses Git LFS: large files are not fetched, only their pointer files."


class Mirrors:
    """The mirrors of a platform, one per project. Their locks are valid only within this process."""

    def __init__(
        self,
        git: Git,
        settings: PlatformSettings,
        *,
        patience: RetryPolicy | None = None,
        owner_of: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`owner_of` returns the owner whose share of git resources a project uses. None: each project has its own
        share."""
        self._git = git
        self._owner_of = owner_of
        self._shares: dict[str, ConcurrencyLimits] = {}
        self._settings = settings
        self._patience = patience or RetryPolicy()
        self._taking = asyncio.Semaphore(_MAX_CONCURRENT_TAKES)
        self._mirrors: dict[str, Mirror] = {}

    def of(self, project_id: str) -> Mirror:
        """Return the project's mirror, whether or not it exists on disk."""
        if project_id not in self._mirrors:
            if not _PROJECT.fullmatch(project_id):
                raise ValueError(f"{project_id!r} is not a project's id")
            folder = self._settings.git_dir / f"{project_id}.git"
            self._mirrors[project_id] = Mirror(
                self._git,
                folder,
                self._share_factory(project_id),
                self._settings,
                patience=self._patience,
                taking=self._taking,
            )
        return self._mirrors[project_id]

    def _share_factory(self, project_id: str) -> Callable[[], Awaitable[ConcurrencyLimits]]:
        found: ConcurrencyLimits | None = None

        async def share() -> ConcurrencyLimits:
            nonlocal found
            if found is None:
                owner = project_id if self._owner_of is None else await self._owner_of(project_id)
                found = self._shares.setdefault(owner, ConcurrencyLimits())
            return found

        return share

    def known(self) -> list[str]:
        """Return the ids of projects that have a complete or partial mirror on disk."""
        return sorted(folder.stem for folder in self._settings.git_dir.glob("*.git") if _PROJECT.fullmatch(folder.stem))

    async def remove(self, project_id: str) -> None:
        """Delete the mirror and everything in it. Idempotent; the next call completes an interrupted one."""
        mirror = self.of(project_id)
        async with mirror.alone():
            if mirror.folder.exists():
                mirror.folder.rename(mirror.folder.with_name(f"{project_id}-{secrets.token_hex(4)}.removed"))
            self._mirrors.pop(project_id, None)
        for folder in self._settings.git_dir.glob("*.removed"):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class Mirror(BareRepository):
    """A mirror, which is a Place. All changes can be repeated after a crash halfway through."""

    def __init__(
        self,
        git: Git,
        folder: Path,
        share: Callable[[], Awaitable[ConcurrencyLimits]],
        settings: PlatformSettings,
        *,
        patience: RetryPolicy,
        taking: asyncio.Semaphore,
    ) -> None:
        """`taking` is shared by all mirrors and held while a mirror takes data that came from a sandbox."""
        super().__init__(git, folder, share)
        self._settings = settings
        self._patience = patience
        self._taking = taking
        self._bundles = BundleStore(self, limit=settings.git_transfer_limit)
        self._bundles.sweep()
        self._complete = self.own / "complete"
        self._refreshing = asyncio.Lock()

    @property
    def exists(self) -> bool:
        """Whether the repository has been fetched completely at least once."""
        return self._complete.exists()

    # the remote -------------------------------------------------------------------------------------------------------

    async def refresh(self, remote: Remote, credential: Credential | None, progress: Progress = no_progress) -> None:
        """Update the mirror, and create it if it is missing or incomplete.

        Branches and tags that were deleted on the remote are deleted here. If nothing has changed, this takes one
        request. Retries on connection errors. Ignores branches and tags whose names are not UTF-8.

        Raises RemoteMissingError if the repository has no branches yet, TooMuchError if it is larger than
        `git_repository_limit`, and the errors of remotes that Git.run raises.
        """

        async def attempt() -> None:
            async with self._refreshing, self.writing():
                await self._refresh(remote, credential, progress)

        await self._patience.over(attempt, "fetch")

    async def _refresh(self, remote: Remote, credential: Credential | None, progress: Progress) -> None:
        progress("Contacting the remote")
        default, wanted = await self._list_refs(remote, credential, "HEAD", f"{HEADS}*", f"{TAGS}*")
        if not any(name.startswith(ORIGIN) for name in wanted):
            raise RemoteMissingError(
                "The repository is empty: it has no branches yet. Push a first commit to it, then try again."
            )
        if not self.exists:
            # an earlier fetch was interrupted before the mirror was complete, so nothing of value is stored in it
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
            await self.git.run("init", "--quiet", "--bare", "--template=", str(self.folder), cwd=None)
        if not self.exists or await self.refs(ORIGIN) | await self.refs(TAGS) != wanted:
            await self.git.run(
                f"--git-dir={self.folder}",
                *("fetch", "--prune", "--no-tags", "--no-write-fetch-head", "--progress", "--", remote.url),
                *(f"+{HEADS}*:{ORIGIN}*", f"+{TAGS}*:{TAGS}*"),
                cwd=self.folder, remote=remote, credential=credential, progress=progress,
                largest=OBJECT_LIMIT, writes=await self._remaining_space(),
            )  # fmt: skip
        self.own.mkdir(exist_ok=True)
        (self.own / "default-branch").write_text(default or "", encoding="utf-8")
        self._complete.touch()

    async def _remaining_space(self) -> int:
        """Return how many bytes may be fetched. A fetch writes one pack, so this is also the file size limit."""
        room = self._settings.git_repository_limit - await asyncio.to_thread(self.packs_size)
        if room <= 0:
            raise TooMuchError(TOO_LARGE)
        return room

    async def look(self, remote: Remote, credential: Credential | None) -> dict[str, str]:
        """Return the remote's current branches. Writes nothing and needs no mirror."""
        _, found = await self._list_refs(remote, credential, f"{HEADS}*")
        return {name.removeprefix(ORIGIN): commit for name, commit in found.items()}

    async def _list_refs(
        self, remote: Remote, credential: Credential | None, *patterns: str
    ) -> tuple[str | None, dict[str, str]]:
        """List the remote's refs. See `_parse_listing`."""
        listing = await list_remote_refs(self.git, remote, credential, *patterns, symref=True)
        return await asyncio.to_thread(_parse_listing, listing)

    async def remote_branch(self, remote: Remote, credential: Credential | None, branch: str) -> str | None:
        return await RemoteConnection(self, remote, credential).at(HEADS + branch)

    async def push(
        self,
        remote: Remote,
        credential: Credential | None,
        commit: str,
        branch: str,
        *,
        expected: str | None,
        base: str | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Push a commit and record the remote's new branch position in the mirror. See `push.push`."""
        line = RemoteConnection(self, remote, credential)
        await push.push(line, commit, branch, expected=expected, base=base, progress=progress, patience=self._patience)
        await self.set_ref(ORIGIN + branch, commit)

    async def push_tag(
        self, remote: Remote, credential: Credential | None, name: str, progress: Progress = no_progress
    ) -> None:
        """Push the tag that a sandbox stored in `refs/sandyard/tags/<name>`. See `push.push_tag`."""
        tag = (await self.refs(OWN_TAGS + name))[OWN_TAGS + name]
        line = RemoteConnection(self, remote, credential)
        await push.push_tag(line, tag, name, progress=progress, patience=self._patience)
        await self.set_ref(TAGS + name, tag)

    async def delete_remote_branch(
        self, remote: Remote, credential: Credential | None, branch: str, expected: str
    ) -> bool:
        """Delete a branch on the remote and in the mirror. See `push.delete_branch`."""
        line = RemoteConnection(self, remote, credential)
        gone = await push.delete_branch(line, branch, expected, progress=no_progress, patience=self._patience)
        if gone:
            await self.drop_ref(ORIGIN + branch)
        return gone

    # contents ---------------------------------------------------------------------------------------------------------

    async def branches(self) -> dict[str, str]:
        """Return the remote's branches as of the last refresh."""
        return {name.removeprefix(ORIGIN): commit for name, commit in (await self.refs(ORIGIN)).items()}

    async def default_branch(self) -> str | None:
        """Return the remote's default branch as of the last refresh. None if the remote names none or one that does not
        exist."""
        try:
            return (self.own / "default-branch").read_text(encoding="utf-8") or None
        except FileNotFoundError:
            return None

    async def on_remote(self, commit: str) -> bool:
        """Return whether a branch or tag of the remote contains this commit. If not, it came from a sandbox."""
        if not await self.has(commit):
            return False
        done = await self.run("for-each-ref", f"--contains={commit}", "--count=1", "--format=x", ORIGIN, TAGS)
        return bool(done.stdout)

    async def features(self, commit: str) -> list[str]:
        """Return what a checkout of this commit will lack, one sentence each."""
        found = []
        if (await self.run("ls-tree", commit, "--", ".gitmodules")).stdout:
            found.append(_SUBMODULES)
        where = ("--", ":(top,glob)**/.gitattributes")
        grep = ("grep", "--quiet", "--fixed-strings", "filter=lfs", commit, *where)
        if (await self.run(*grep, ok=(0, 1), timeout_s=READ_TIMEOUT_S)).code == 0:
            found.append(_LFS)
        return found

    async def conflicts(self, ours: str, theirs: str) -> Conflicts:
        """Return the conflicts that merging the two commits would cause. Changes nothing."""
        return await merge_tree.conflicts(self, ours, theirs)

    async def large(self) -> bool:
        return await asyncio.to_thread(self.packs_size) > self._settings.git_shallow_over

    # transfer to and from sandboxes -----------------------------------------------------------------------------------

    async def bundle(
        self,
        commit: str,
        *,
        ref: str,
        have: Sequence[str] = (),
        depth: int | None = None,
        shallow: Sequence[str] = (),
    ) -> Bundle:
        """Write a bundle with `commit` under the name `ref`. Pass it to `release` when done.

        Without `have` it holds the history, `depth` generations of it or all, and is cached for other callers. With
        `have` it holds the objects that those commits lack; if the receiver's history is shallow, `shallow` must say
        where it ends. Commits in `have` that the mirror does not know are ignored. Raises TooMuchError if the bundle is
        larger than `git_transfer_limit`.
        """
        return await self._bundles.make(commit, ref=ref, have=have, depth=depth, shallow=shallow)

    async def release(self, bundle: Bundle) -> None:
        """Remove the bundle unless it is cached."""
        await self._bundles.release(bundle)

    async def import_bundle(self, path: Path, refs: Mapping[str, str]) -> dict[str, str]:
        """Take commits from a bundle. See `taking.take`.

        `refs` maps refs in the bundle to refs below refs/sandyard/ in the mirror. Returns the latter with their new
        commits.
        """
        async with self.writing(), (await self.share()).taking, self._taking:
            return await import_bundle(self, path, refs, limit=self._settings.git_transfer_limit)

    async def tidy(self) -> None:
        """Repack if there are many packs, and delete bundles that were not used for a day.

        Unreferenced objects are deleted after two weeks. Does nothing while someone is writing; a later call will do
        the work.
        """
        if not self.exists or self.busy:
            return
        await self._bundles.drop()
        async with self.alone():
            if sum(1 for _ in self.objects.glob("pack/*.pack")) > _MAX_PACKS:
                await self.run("gc", "--quiet", "--cruft", "--prune=2.weeks.ago", memory=MEMORY)


def _parse_listing(listing: bytes) -> tuple[str | None, dict[str, str]]:
    """Parse `ls-remote --symref`: return the default branch, and the refs under their names in a mirror."""
    default, refs = None, dict[str, str]()
    for value, name in parse_refs(listing):
        if name == "HEAD" and value.startswith(f"ref: {HEADS}"):
            default = value.removeprefix(f"ref: {HEADS}")
        elif name.endswith("^{}") or not COMMIT.fullmatch(value):
            continue
        elif name.startswith(HEADS):
            refs[ORIGIN + name.removeprefix(HEADS)] = value
        elif name.startswith(TAGS):
            refs[name] = value
    return default if default and ORIGIN + default in refs else None, refs
