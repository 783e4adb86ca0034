"""Mirrors: the platform's own full copy of each project's repository, which sandboxes get their commits from and bring them to.

`refs/remotes/origin/*` and `refs/tags/*` are the remote's; `refs/sandyard/…` is what came out of sandboxes.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from sandyard.platform.domain.git import merging, pushing
from sandyard.platform.domain.git.bare import COMMIT, OBJECT_LIMIT, READ_TIMEOUT_S, Bare, Share, list_remote, listed
from sandyard.platform.domain.git.bundles import Bundles
from sandyard.platform.domain.git.errors import RemoteMissingError, TooMuchError
from sandyard.platform.domain.git.faults import TOO_LARGE
from sandyard.platform.domain.git.host import MEMORY, Git
from sandyard.platform.domain.git.model import Bundle, Conflicts, Credential, Progress, no_progress
from sandyard.platform.domain.git.pushing import Line, Patience
from sandyard.platform.domain.git.remote import Remote
from sandyard.platform.domain.git.taking import take
from sandyard.platform.settings import PlatformSettings

HEADS, ORIGIN, TAGS = "refs/heads/", "refs/remotes/origin/", "refs/tags/"
OWN_TAGS = "refs/sandyard/tags/"
_MANY_PACKS = 20
_TAKEN_AT_ONCE = 4
"""Of all mirrors: what came out of a sandbox can cost as much time and memory as it is allowed."""
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SUBMODULES = "The repository has submodules, which are not checked out: their folders are empty."
_LFS = "The repository uses Git LFS: large files are not fetched, only their pointer files."


class Mirrors:
    """One for a platform: it keeps one Mirror per project, whose locks hold only within this process."""

    def __init__(
        self,
        git: Git,
        settings: PlatformSettings,
        *,
        patience: Patience | None = None,
        owner_of: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`owner_of`: whose share of the platform's git a project uses. None: each project has a share of its own."""
        self._git = git
        self._owner_of = owner_of
        self._shares: dict[str, Share] = {}
        self._settings = settings
        self._patience = patience or Patience()
        self._taking = asyncio.Semaphore(_TAKEN_AT_ONCE)
        self._open: dict[str, Mirror] = {}

    def of(self, project_id: str) -> Mirror:
        """The project's mirror, whether or not it has been made."""
        if project_id not in self._open:
            if not _PROJECT.fullmatch(project_id):
                raise ValueError(f"{project_id!r} is not a project's id")
            folder = self._settings.git_dir / f"{project_id}.git"
            self._open[project_id] = Mirror(
                self._git,
                folder,
                self._share_of(project_id),
                self._settings,
                patience=self._patience,
                taking=self._taking,
            )
        return self._open[project_id]

    def _share_of(self, project_id: str) -> Callable[[], Awaitable[Share]]:
        found: Share | None = None

        async def share() -> Share:
            nonlocal found
            if found is None:
                owner = project_id if self._owner_of is None else await self._owner_of(project_id)
                found = self._shares.setdefault(owner, Share())
            return found

        return share

    def known(self) -> list[str]:
        """The projects that have something of a mirror on the disk."""
        return sorted(folder.stem for folder in self._settings.git_dir.glob("*.git") if _PROJECT.fullmatch(folder.stem))

    async def remove(self, project_id: str) -> None:
        """With all that was kept in it. Idempotent; one that was cut short is completed by the next."""
        mirror = self.of(project_id)
        async with mirror.alone():
            if mirror.folder.exists():
                mirror.folder.rename(mirror.folder.with_name(f"{project_id}-{secrets.token_hex(4)}.removed"))
            self._open.pop(project_id, None)
        for folder in self._settings.git_dir.glob("*.removed"):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class Mirror(Bare):
    """A Place. Everything that changes it can be repeated after a crash in its middle."""

    def __init__(
        self,
        git: Git,
        folder: Path,
        share: Callable[[], Awaitable[Share]],
        settings: PlatformSettings,
        *,
        patience: Patience,
        taking: asyncio.Semaphore,
    ) -> None:
        """`taking`: shared by all mirrors, and held while one takes what came out of a sandbox."""
        super().__init__(git, folder, share)
        self._settings = settings
        self._patience = patience
        self._taking = taking
        self._bundles = Bundles(self, limit=settings.git_transfer_limit)
        self._bundles.sweep()
        self._complete = self.own / "complete"
        self._refreshing = asyncio.Lock()

    @property
    def exists(self) -> bool:
        """Whether it has been fetched wholly once."""
        return self._complete.exists()

    # the remote --------------------------------------------------------------------------------------------------------

    async def refresh(self, remote: Remote, credential: Credential | None, progress: Progress = no_progress) -> None:
        """Brings it up to date, and makes it when there is none or only a part of one. Branches and tags that are gone from the
        remote are gone here afterwards. Asks the remote once when nothing is new; tries again when the line is faulty.

        Branches and tags whose names are not UTF-8 are nowhere told of. Raises RemoteMissingError when the repository has no branch
        yet, TooMuchError when it is larger than `git_repository_limit`, and what Git.run raises of remotes.
        """

        async def attempt() -> None:
            async with self._refreshing, self.writing():
                await self._refresh(remote, credential, progress)

        await self._patience.over(attempt, "fetch")

    async def _refresh(self, remote: Remote, credential: Credential | None, progress: Progress) -> None:
        progress("Contacting the remote")
        default, wanted = await self._ask(remote, credential, "HEAD", f"{HEADS}*", f"{TAGS}*")
        if not any(name.startswith(ORIGIN) for name in wanted):
            raise RemoteMissingError(
                "The repository is empty: it has no branches yet. Push a first commit to it, then try again."
            )
        if not self.exists:
            # what is there was cut short before it was ever whole: nothing has been kept in it
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
            await self.git.run("init", "--quiet", "--bare", "--template=", str(self.folder), cwd=None)
        if not self.exists or await self.refs(ORIGIN) | await self.refs(TAGS) != wanted:
            await self.git.run(
                f"--git-dir={self.folder}",
                *("fetch", "--prune", "--no-tags", "--no-write-fetch-head", "--progress", "--", remote.url),
                *(f"+{HEADS}*:{ORIGIN}*", f"+{TAGS}*:{TAGS}*"),
                cwd=self.folder, remote=remote, credential=credential, progress=progress,
                largest=OBJECT_LIMIT, writes=await self._room(),
            )  # fmt: skip
        self.own.mkdir(exist_ok=True)
        (self.own / "default-branch").write_text(default or "", encoding="utf-8")
        self._complete.touch()

    async def _room(self) -> int:
        """How much may come. A fetch writes one pack, so that this is the limit of one file."""
        room = self._settings.git_repository_limit - await asyncio.to_thread(self.packs_size)
        if room <= 0:
            raise TooMuchError(TOO_LARGE)
        return room

    async def look(self, remote: Remote, credential: Credential | None) -> dict[str, str]:
        """The remote's branches as it has them now. Writes nothing, and needs no mirror."""
        _, found = await self._ask(remote, credential, f"{HEADS}*")
        return {name.removeprefix(ORIGIN): commit for name, commit in found.items()}

    async def _ask(
        self, remote: Remote, credential: Credential | None, *patterns: str
    ) -> tuple[str | None, dict[str, str]]:
        """See `_advertised`."""
        listing = await list_remote(self.git, remote, credential, *patterns, symref=True)
        return await asyncio.to_thread(_advertised, listing)

    async def remote_branch(self, remote: Remote, credential: Credential | None, branch: str) -> str | None:
        return await Line(self, remote, credential).at(HEADS + branch)

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
        """See `pushing.push`. Afterwards the mirror knows the remote's branch to be there."""
        line = Line(self, remote, credential)
        await pushing.push(
            line, commit, branch, expected=expected, base=base, progress=progress, patience=self._patience
        )
        await self.set_ref(ORIGIN + branch, commit)

    async def push_tag(
        self, remote: Remote, credential: Credential | None, name: str, progress: Progress = no_progress
    ) -> None:
        """The tag that a sandbox brought to `refs/sandyard/tags/<name>`; see `pushing.push_tag`."""
        tag = (await self.refs(OWN_TAGS + name))[OWN_TAGS + name]
        line = Line(self, remote, credential)
        await pushing.push_tag(line, tag, name, progress=progress, patience=self._patience)
        await self.set_ref(TAGS + name, tag)

    async def delete_remote_branch(
        self, remote: Remote, credential: Credential | None, branch: str, expected: str
    ) -> bool:
        """See `pushing.delete_branch`."""
        line = Line(self, remote, credential)
        gone = await pushing.delete_branch(line, branch, expected, progress=no_progress, patience=self._patience)
        if gone:
            await self.drop_ref(ORIGIN + branch)
        return gone

    # what it has -------------------------------------------------------------------------------------------------------

    async def branches(self) -> dict[str, str]:
        """The remote's, as of the last refresh."""
        return {name.removeprefix(ORIGIN): commit for name, commit in (await self.refs(ORIGIN)).items()}

    async def default_branch(self) -> str | None:
        """As the remote said at the last refresh. None when it says nothing, or names one that is not there."""
        try:
            return (self.own / "default-branch").read_text(encoding="utf-8") or None
        except FileNotFoundError:
            return None

    async def on_remote(self, commit: str) -> bool:
        """Whether one of the remote's branches or tags has this commit: if not, it came out of a sandbox."""
        if not await self.has(commit):
            return False
        done = await self.run("for-each-ref", f"--contains={commit}", "--count=1", "--format=x", ORIGIN, TAGS)
        return bool(done.stdout)

    async def features(self, commit: str) -> list[str]:
        """What a checkout of it will lack, in sentences."""
        found = []
        if (await self.run("ls-tree", commit, "--", ".gitmodules")).stdout:
            found.append(_SUBMODULES)
        where = ("--", ":(top,glob)**/.gitattributes")
        grep = ("grep", "--quiet", "--fixed-strings", "filter=lfs", commit, *where)
        if (await self.run(*grep, ok=(0, 1), timeout_s=READ_TIMEOUT_S)).code == 0:
            found.append(_LFS)
        return found

    async def conflicts(self, ours: str, theirs: str) -> Conflicts:
        """What a merge of the two would stumble over. Changes nothing."""
        return await merging.conflicts(self, ours, theirs)

    async def large(self) -> bool:
        return await asyncio.to_thread(self.packs_size) > self._settings.git_shallow_over

    # in and out of sandboxes -------------------------------------------------------------------------------------------

    async def bundle(
        self,
        commit: str,
        *,
        ref: str,
        have: Sequence[str] = (),
        depth: int | None = None,
        shallow: Sequence[str] = (),
    ) -> Bundle:
        """A file with `commit` under the name `ref`, to be given back with `release`.

        Without `have` it holds the history, of `depth` generations or all of it; it is kept for whoever wants the same. With `have`
        it holds what those commits lack; `shallow` must then say where the receiver's own history ends, if it is not whole. What
        of `have` the mirror does not know is left aside. TooMuchError when it is larger than `git_transfer_limit`.
        """
        return await self._bundles.make(commit, ref=ref, have=have, depth=depth, shallow=shallow)

    async def release(self, bundle: Bundle) -> None:
        """Removes it, unless it is one that is kept."""
        await self._bundles.release(bundle)

    async def take(self, path: Path, refs: Mapping[str, str]) -> dict[str, str]:
        """See `taking.take`: ref in the bundle → ref below refs/sandyard/ in the mirror. The latter, and the commit each now names."""
        async with self.writing(), (await self.share()).taking, self._taking:
            return await take(self, path, refs, limit=self._settings.git_transfer_limit)

    async def tidy(self) -> None:
        """Packs anew when there are many packs, and drops bundles that were not used for a day. What no ref has is dropped after two
        weeks. Does nothing while somebody writes: there will be another time."""
        if not self.exists or self.busy:
            return
        await self._bundles.drop()
        async with self.alone():
            if sum(1 for _ in self.objects.glob("pack/*.pack")) > _MANY_PACKS:
                await self.run("gc", "--quiet", "--cruft", "--prune=2.weeks.ago", memory=MEMORY)


def _advertised(listing: bytes) -> tuple[str | None, dict[str, str]]:
    """Of `ls-remote --symref`: the default branch, and the refs under the names they have in a mirror."""
    default, refs = None, dict[str, str]()
    for value, name in listed(listing):
        if name == "HEAD" and value.startswith(f"ref: {HEADS}"):
            default = value.removeprefix(f"ref: {HEADS}")
        elif name.endswith("^{}") or not COMMIT.fullmatch(value):
            continue
        elif name.startswith(HEADS):
            refs[ORIGIN + name.removeprefix(HEADS)] = value
        elif name.startswith(TAGS):
            refs[name] = value
    return default if default and ORIGIN + default in refs else None, refs
