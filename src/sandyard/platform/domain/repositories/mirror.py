"""Mirrors: the platform's full copy of each project's repository. Sandboxes get commits from it and send commits to it.

`refs/remotes/origin/*` and `refs/tags/*` mirror the remote; `refs/sandyard/…` holds what came from sandboxes.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from sandyard.platform.domain.repositories import push
from sandyard.platform.domain.repositories.bare_repository import (
    COMMIT_ID,
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
from sandyard.platform.domain.repositories.errors import (
    RemoteMissingError,
    RepositoryInvalidError,
    TooMuchError,
)
from sandyard.platform.domain.repositories.git_process import DEFAULT_MEMORY_BYTES, Git
from sandyard.platform.domain.repositories.model import Credential, Progress, ignore_progress
from sandyard.platform.domain.repositories.push import RemoteConnection, RetryPolicy
from sandyard.platform.domain.repositories.remote import Remote
from sandyard.platform.settings import PlatformSettings

HEADS, ORIGIN, TAGS = "refs/heads/", "refs/remotes/origin/", "refs/tags/"
OWN_TAGS = "refs/sandyard/tags/"
_MAX_PACKS = 20
_REPACK_SETTINGS = ("pack.threads=1", "pack.windowMemory=256m", "core.bigFileThreshold=16m")
"""Git compares up to eleven files at once, by default of up to 512 MB each in each thread: they come from sandboxes and remotes."""
_REPACK_TIMEOUT_S = 900.0
"""Nobody can write to a mirror while it is repacked."""
_MAX_CONCURRENT_IMPORTS = 4
"""Limit across all mirrors: data from a sandbox may use all the time and memory it is allowed."""
_INFINITE_DEPTH = 2**31 - 1
"""Git's value for the whole history."""
_PROJECT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SUBMODULES = "The repository has submodules, which are not checked out: their folders are empty."
_SHALLOW = "The repository on the remote is a shallow clone: its history is incomplete. Fetch its whole history there, then try again."
_LFS = "The repository uses Git LFS: large files are not fetched, only their pointer files."


class Mirrors:
    """The mirrors of a platform, one per project. Their locks are valid only within this process."""

    def __init__(
        self,
        git: Git,
        settings: PlatformSettings,
        *,
        retry_policy: RetryPolicy | None = None,
        get_owner_id: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`get_owner_id` returns the user whose share of git resources a project uses. None: each project has its own share."""
        self._git = git
        self._get_owner_id = get_owner_id
        self._limits: dict[str, ConcurrencyLimits] = {}
        self._settings = settings
        self._retry_policy = retry_policy or RetryPolicy()
        self._importing = asyncio.Semaphore(_MAX_CONCURRENT_IMPORTS)
        self._mirrors: dict[str, Mirror] = {}

    def get(self, project_id: str) -> Mirror:
        """Return the project's mirror, whether or not it exists on disk."""
        if project_id not in self._mirrors:
            if not _PROJECT_ID.fullmatch(project_id):
                raise ValueError(f"{project_id!r} is not a project's id")
            folder = self._settings.git_dir / f"{project_id}.git"
            self._mirrors[project_id] = Mirror(
                self._git,
                folder,
                self._make_limits_getter(project_id),
                self._settings,
                retry_policy=self._retry_policy,
                importing=self._importing,
            )
        return self._mirrors[project_id]

    def _make_limits_getter(self, project_id: str) -> Callable[[], Awaitable[ConcurrencyLimits]]:
        limits: ConcurrencyLimits | None = None

        async def get_limits() -> ConcurrencyLimits:
            nonlocal limits
            if limits is None:
                owner = project_id if self._get_owner_id is None else await self._get_owner_id(project_id)
                limits = self._limits.setdefault(owner, ConcurrencyLimits())
            return limits

        return get_limits

    def list_project_ids(self) -> list[str]:
        """Return the ids of projects that have a complete or partial mirror on disk."""
        return sorted(
            folder.stem for folder in self._settings.git_dir.glob("*.git") if _PROJECT_ID.fullmatch(folder.stem)
        )

    async def remove(self, project_id: str) -> None:
        """Delete the mirror and everything in it. Idempotent; the next call completes an interrupted one."""
        mirror = self.get(project_id)
        async with mirror.exclusive():
            if mirror.folder.exists():
                mirror.folder.rename(mirror.folder.with_name(f"{project_id}-{secrets.token_hex(4)}.removed"))
            self._mirrors.pop(project_id, None)
        for folder in self._settings.git_dir.glob("*.removed"):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class Mirror(BareRepository):
    """A mirror, which is a RepositoryReader. All changes can be repeated after a crash halfway through."""

    def __init__(
        self,
        git: Git,
        folder: Path,
        get_limits: Callable[[], Awaitable[ConcurrencyLimits]],
        settings: PlatformSettings,
        *,
        retry_policy: RetryPolicy,
        importing: asyncio.Semaphore,
    ) -> None:
        """`importing` is shared by all mirrors and held while a mirror imports data that came from a sandbox."""
        super().__init__(git, folder, get_limits)
        self._settings = settings
        self._retry_policy = retry_policy
        self._importing = importing
        self.bundles = BundleStore(self, limit=settings.git_transfer_limit)
        self.bundles.remove_temporary_files()
        self._complete = self.own_folder / "complete"
        # held while copying the remote's refs, and while changing them there and here
        self._remote_lock = asyncio.Lock()

    @property
    def exists(self) -> bool:
        """Whether the repository has been fetched completely at least once."""
        return self._complete.exists()

    # the remote -------------------------------------------------------------------------------------------------------

    async def refresh(
        self, remote: Remote, credential: Credential | None, progress: Progress = ignore_progress
    ) -> None:
        """Update the mirror, and create it if it is missing or incomplete.

        Branches and tags that were deleted on the remote are deleted here. If nothing has changed, this takes one
        request. Retries on connection errors. Ignores branches and tags whose names are not UTF-8.

        Raises RemoteMissingError if the repository has no branches yet, RepositoryInvalidError if it is shallow or its server
        speaks only the dumb HTTP protocol, TooMuchError if it is larger than `git_repository_limit`, and the errors of
        remotes that Git.run raises.
        """

        async def attempt() -> None:
            async with self._remote_lock, self.writing():
                await self._refresh(remote, credential, progress)

        await self._retry_policy.run(attempt, "fetch")

    async def _refresh(self, remote: Remote, credential: Credential | None, progress: Progress) -> None:
        progress("Contacting the remote")
        default, refs = await self._list_remote_refs(remote, credential, "HEAD", f"{HEADS}*", f"{TAGS}*")
        if not any(name.startswith(ORIGIN) for name in refs):
            raise RemoteMissingError(
                "The repository is empty: it has no branches yet. Push a first commit to it, then try again."
            )
        if not self.exists:
            # an earlier fetch was interrupted before the mirror was complete, so nothing of value is stored in it
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
            await self.git.run("init", "--quiet", "--bare", "--template=", str(self.folder), cwd=None)
        known = await self.list_refs(ORIGIN) | await self.list_refs(TAGS)
        stored = await self._filter_stored({name: refs[name] for name in refs if refs[name] != known.get(name)})
        await self.delete_refs(known.keys() - refs.keys())
        await self.set_refs(stored)
        known = {name: known[name] for name in known.keys() & refs.keys()} | stored
        if not self.exists or known != refs:
            await self._fetch(remote, credential, progress, known)
        self.own_folder.mkdir(exist_ok=True)
        (self.own_folder / "default-branch").write_text(default or "", encoding="utf-8")
        self._complete.touch()

    async def _filter_stored(self, refs: Mapping[str, str]) -> dict[str, str]:
        """Return those of the refs whose objects the mirror has already, such as a renamed branch."""
        ids = "".join(f"{object_id}\n" for object_id in refs.values()).encode()
        listing = await self.run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=ids)
        found = {line.split()[0] for line in listing.stdout.decode().splitlines() if not line.endswith(" missing")}
        stored = {name: object_id for name, object_id in refs.items() if object_id in found}
        if stored:
            tips = "".join(f"{object_id}\n" for object_id in set(stored.values())).encode()
            check = ("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all")
            complete = await self.run(*check, stdin=tips, ok=(0, 1, 128), memory=DEFAULT_MEMORY_BYTES)
            return stored if complete.code == 0 else {}
        return {}

    async def _fetch(
        self, remote: Remote, credential: Credential | None, progress: Progress, known: Mapping[str, str]
    ) -> None:
        """Fetch all branches and tags. `known` are those that the mirror has.

        With the dumb HTTP protocol, git would download any number of files and skip the checks of their objects. Git refuses it
        if a depth is given. An infinite one changes nothing else, except that git would accept an incomplete history, and would
        fetch stored objects again if no ref has changed or a ref was renamed: `_refresh` handles these.
        """
        depth = (f"--depth={_INFINITE_DEPTH}",) if remote.kind == "http" else ()
        await self.git.run(
            f"--git-dir={self.folder}",
            *("fetch", "--prune", "--no-tags", "--no-write-fetch-head", "--progress", *depth, "--", remote.url),
            *(f"+{HEADS}*:{ORIGIN}*", f"+{TAGS}*:{TAGS}*"),
            cwd=self.folder, remote=remote, credential=credential, progress=progress,
            max_allocation=OBJECT_LIMIT, max_file_size=await self._get_remaining_space(),
        )  # fmt: skip
        boundary = self.folder / "shallow"
        if boundary.exists():
            fetched = await self.list_refs(ORIGIN) | await self.list_refs(TAGS)
            await self.delete_refs(fetched.keys() - known.keys())
            await self.set_refs(known)
            boundary.unlink()
            raise RepositoryInvalidError(_SHALLOW)
        await self._get_remaining_space()

    async def _get_remaining_space(self) -> int:
        """Return how many bytes may be fetched. A fetch writes one pack, so this is also the file size limit.

        Raises TooMuchError if there are none.
        """
        remaining = self._settings.git_repository_limit - await asyncio.to_thread(self.get_objects_size)
        if remaining <= 0:
            raise TooMuchError(TOO_LARGE)
        return remaining

    async def list_remote_branches(self, remote: Remote, credential: Credential | None) -> dict[str, str]:
        """Return the remote's current branches. Writes nothing and needs no mirror."""
        _, found = await self._list_remote_refs(remote, credential, f"{HEADS}*")
        return {name.removeprefix(ORIGIN): commit for name, commit in found.items()}

    async def _list_remote_refs(
        self, remote: Remote, credential: Credential | None, *patterns: str
    ) -> tuple[str | None, dict[str, str]]:
        """List the remote's refs. See `_parse_listing`."""
        listing = await list_remote_refs(self.git, remote, credential, *patterns, symref=True)
        return await asyncio.to_thread(_parse_listing, listing)

    async def get_remote_branch(self, remote: Remote, credential: Credential | None, branch: str) -> str | None:
        return await RemoteConnection(self, remote, credential).get_ref(HEADS + branch)

    async def check_push_access(self, remote: Remote, credential: Credential | None) -> None:
        """Check that the remote lets the credential start a push. Writes nothing and needs no mirror. See `push.check_push_access`."""
        await push.check_push_access(self.git, remote, credential)

    async def push(
        self,
        remote: Remote,
        credential: Credential | None,
        commit: str,
        branch: str,
        *,
        expected: str | None,
        base: str | None = None,
        progress: Progress = ignore_progress,
    ) -> None:
        """Push a commit and record the remote's new branch position in the mirror. See `push.push`."""
        connection = RemoteConnection(self, remote, credential)
        async with self._remote_lock:
            await push.push(
                connection,
                commit,
                branch,
                expected=expected,
                base=base,
                progress=progress,
                retry_policy=self._retry_policy,
            )
            await self.set_ref(ORIGIN + branch, commit)

    async def push_tag(
        self, remote: Remote, credential: Credential | None, name: str, progress: Progress = ignore_progress
    ) -> None:
        """Push the tag that a sandbox stored in `refs/sandyard/tags/<name>`. See `push.push_tag`."""
        tag = (await self.list_refs(OWN_TAGS + name))[OWN_TAGS + name]
        connection = RemoteConnection(self, remote, credential)
        async with self._remote_lock:
            await push.push_tag(connection, tag, name, progress=progress, retry_policy=self._retry_policy)
            await self.set_ref(TAGS + name, tag)

    async def delete_remote_branch(
        self, remote: Remote, credential: Credential | None, branch: str, expected: str
    ) -> bool:
        """Delete a branch on the remote and in the mirror. See `push.delete_branch`."""
        connection = RemoteConnection(self, remote, credential)
        async with self._remote_lock:
            deleted = await push.delete_branch(
                connection, branch, expected, progress=ignore_progress, retry_policy=self._retry_policy
            )
            if deleted:
                await self.delete_ref(ORIGIN + branch)
        return deleted

    # contents ---------------------------------------------------------------------------------------------------------

    async def list_branches(self) -> dict[str, str]:
        """Return the remote's branches as of the last refresh."""
        return {name.removeprefix(ORIGIN): commit for name, commit in (await self.list_refs(ORIGIN)).items()}

    async def get_default_branch(self) -> str | None:
        """Return the remote's default branch as of the last refresh. None if the remote names none or one that does not exist."""
        try:
            return (self.own_folder / "default-branch").read_text(encoding="utf-8") or None
        except FileNotFoundError:
            return None

    async def is_on_remote(self, commit: str) -> bool:
        """Return whether a branch or tag of the remote contains this commit. If not, it came from a sandbox."""
        if not await self.has_commit(commit):
            return False
        result = await self.run("for-each-ref", f"--contains={commit}", "--count=1", "--format=x", ORIGIN, TAGS)
        return bool(result.stdout)

    async def list_limitations(self, commit: str) -> list[str]:
        """Return what a checkout of this commit will lack, one sentence each."""
        found = []
        if (await self.run("ls-tree", commit, "--", ".gitmodules")).stdout:
            found.append(_SUBMODULES)
        pathspec = ("--", ":(top,glob)**/.gitattributes")
        grep = ("grep", "--quiet", "--fixed-strings", "filter=lfs", commit, *pathspec)
        if (await self.run(*grep, ok=(0, 1), timeout_s=READ_TIMEOUT_S)).code == 0:
            found.append(_LFS)
        return found

    async def is_large(self) -> bool:
        return await asyncio.to_thread(self.get_packs_size) > self._settings.git_shallow_over

    # transfer to and from sandboxes -----------------------------------------------------------------------------------

    async def import_bundle(
        self, path: Path, refs: Mapping[str, str], *, own_refs: Collection[str] = ()
    ) -> dict[str, str]:
        """Import commits from a bundle. See `bundle_import.import_bundle`.

        `refs` maps refs in the bundle to refs below refs/sandyard/ in the mirror. `own_refs` are the mirror's refs of the same
        sandbox. Returns the refs in the mirror with their new commits.
        """
        # the user's slot comes first, so that nobody waits for this user's processes
        async with self.writing(), (await self.get_limits()).take_import(), self._importing:
            return await import_bundle(
                self,
                path,
                refs,
                own_refs=own_refs,
                shared_prefixes=(ORIGIN, TAGS),
                limit=self._settings.git_transfer_limit,
            )

    async def tidy(self) -> None:
        """Repack if there are many packs, and delete bundles that were not used for a day.

        Unreferenced objects are deleted after two weeks. Does nothing while someone is writing; a later call will do
        the work. Raises TooMuchError or GitTimeoutError if repacking takes too much memory or time.
        """
        if not self.exists or self.has_writers:
            return
        await self.bundles.remove_unused()
        async with self.exclusive():
            if sum(1 for _ in self.objects.glob("pack/*.pack")) > _MAX_PACKS:
                await self.run(
                    *(word for setting in _REPACK_SETTINGS for word in ("-c", setting)),
                    *("gc", "--quiet", "--cruft", "--prune=2.weeks.ago"),
                    memory=DEFAULT_MEMORY_BYTES,
                    timeout_s=_REPACK_TIMEOUT_S,
                )


def _parse_listing(listing: bytes) -> tuple[str | None, dict[str, str]]:
    """Parse `ls-remote --symref`: return the default branch, and the refs under their names in a mirror."""
    default, refs = None, dict[str, str]()
    for value, name in parse_refs(listing):
        if name == "HEAD" and value.startswith(f"ref: {HEADS}"):
            default = value.removeprefix(f"ref: {HEADS}")
        elif name.endswith("^{}") or not COMMIT_ID.fullmatch(value):
            continue
        elif name.startswith(HEADS):
            refs[ORIGIN + name.removeprefix(HEADS)] = value
        elif name.startswith(TAGS):
            refs[name] = value
    return default if default and ORIGIN + default in refs else None, refs
