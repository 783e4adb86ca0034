"""Operations on a bare repository on the platform's machine."""

from __future__ import annotations

import asyncio
import io
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from sandyard.platform.domain.repositories.errors import TooMuchError
from sandyard.platform.domain.repositories.git_process import OUTPUT_LIMIT, Git, GitResult, Stdin
from sandyard.platform.domain.repositories.model import Credential, Identity
from sandyard.platform.domain.repositories.remote import Remote

COMMIT_ID = re.compile(r"[0-9a-f]{40}")
OBJECT_LIMIT = 1 << 30
"""Maximum size of one allocation by git: a few bytes of a delta, or of zeros, can expand to any size."""
READ_MEMORY_BYTES = 1 << 30
"""Memory of one git process that reads. A few bytes of trees can expand to any number of paths, which git keeps in memory."""
REFS_LIMIT = 16 << 20
"""Maximum size of the list of a remote's branches and tags, which is enough for about 200,000 of them."""
_REFS_TIMEOUT_S, _REFS_MEMORY_BYTES = 120.0, 512 << 20
"""Limits of the process that reads this list: the remote decides how long it takes and how much it sends."""
READ_TIMEOUT_S = 120.0
MAX_PROCESSES = 4
"""Maximum number of concurrent git processes in all repositories of one user, so that others can run theirs."""
MAX_PACKS = 2
"""Maximum number of git processes that concurrently pack bundles for one user."""
MAX_IMPORTS = 2
"""Maximum number of bundles from sandboxes that are read concurrently for one user."""
MAX_LONG = MAX_PROCESSES - 1
"""Maximum number of both, which may take long, so that there is always a process for quick reads."""
# deltas are copied from the repository's packs as they are: searching for better ones takes minutes
_FAST_PACKING = ("-c", "pack.window=0")
_BINARY_ABOVE = "8m"
"""Larger files are treated as binary: nobody reads their diffs, which cost memory."""


class ConcurrencyLimits:
    """Concurrency limits for the repositories of one user."""

    def __init__(self) -> None:
        self._imports = asyncio.Semaphore(MAX_IMPORTS)
        self._packs = asyncio.Semaphore(MAX_PACKS)
        self._long = asyncio.Semaphore(MAX_LONG)
        self._processes = asyncio.Semaphore(MAX_PROCESSES)
        self._holders: set[asyncio.Task[object] | None] = set()

    @asynccontextmanager
    async def take_process(self) -> AsyncIterator[None]:
        """Wait for one of the slots for git processes. A task that has one already does not wait for another, but uses it again.

        Take it before a limit that is shared with other users, so that nobody waits for this user's processes.
        """
        task = asyncio.current_task()
        if task in self._holders:
            yield
            return
        async with self._processes:
            self._holders.add(task)
            try:
                yield
            finally:
                self._holders.remove(task)

    @asynccontextmanager
    async def take_import(self) -> AsyncIterator[None]:
        """Wait for a slot, as `take_process` does, to import a bundle. All processes of the import use it."""
        async with self._imports, self._long, self.take_process():
            yield

    @asynccontextmanager
    async def take_pack(self) -> AsyncIterator[None]:
        """Wait for a slot, as `take_process` does, to pack a bundle."""
        async with self._packs, self._long, self.take_process():
            yield


class BareRepository:
    """A bare repository with any number of readers and writers: git locks each ref while it writes it. `exclusive` excludes writers.

    There must be only one object of this class per folder in a process, and no other process may write there. The
    constructor removes what a killed process has left behind.
    """

    def __init__(self, git: Git, folder: Path, get_limits: Callable[[], Awaitable[ConcurrencyLimits]]) -> None:
        """`get_limits` returns the limits of the repository's owner."""
        self.git = git
        self.folder = folder
        self.own_folder = folder / "sandyard"  # the platform's files, next to git's
        self._scratch = self.own_folder / "scratch"
        self._exclusive_lock = asyncio.Lock()
        self.tree_paths: dict[bytes, int] = {}  # path counts of trees; see tree_paths.py
        self.get_limits = get_limits
        self._writers = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._may_have_leftovers = False  # a git process has failed or was stopped, and may have left files behind
        self._delete_leftovers()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    async def run(
        self,
        *arguments: str,
        ok: Container[int] = (0,),
        limit: int = OUTPUT_LIMIT,
        stdin: Stdin = None,
        objects: Path | None = None,
        timeout_s: float | None = None,
        max_allocation: int = OBJECT_LIMIT,
        memory: int | None = None,
    ) -> GitResult:
        """Run git in this repository, without a remote and with bounded memory (READ_MEMORY_BYTES if None), whatever the objects are."""
        async with (await self.get_limits()).take_process():
            return await self.git.run(
                f"--git-dir={self.folder}",
                *arguments,
                cwd=self.folder,
                ok=ok,
                limit=limit,
                stdin=stdin,
                objects=objects,
                timeout_s=timeout_s,
                max_allocation=max_allocation,
                memory=READ_MEMORY_BYTES if memory is None else memory,
            )

    async def pack(self, folder: Path, *arguments: str, stdin: Stdin = None) -> GitResult:
        """Run git to pack objects of this repository, from the repository at `folder`. See `take_pack`."""
        async with (await self.get_limits()).take_pack():
            return await self.git.run(
                *_FAST_PACKING, f"--git-dir={folder}", *arguments, cwd=folder, objects=self.objects, stdin=stdin
            )

    async def read(self, *arguments: str, limit: int = OUTPUT_LIMIT) -> tuple[bytes, bool]:
        """Run a read-only command. Return its output and whether it was cut off at `limit`."""
        options = ("-c", f"core.bigFileThreshold={_BINARY_ABOVE}")
        result = await self.run(*options, *arguments, limit=limit, timeout_s=READ_TIMEOUT_S)
        return result.stdout, result.truncated

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Hold this context while writing to the repository.

        What a failed or stopped git process left behind (locks, partial packs) is removed as soon as there are no
        writers.
        """
        async with self._exclusive_lock:
            self._writers += 1
            self._idle.clear()
        try:
            yield
        except BaseException:
            self._may_have_leftovers = True
            raise
        finally:
            self._writers -= 1
            if not self._writers:
                self._delete_leftovers_if_needed()
                self._idle.set()

    @property
    def has_writers(self) -> bool:
        return self._writers > 0

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Wait until there are no writers, and block all others meanwhile."""
        async with self._exclusive_lock:
            await self._idle.wait()
            try:
                yield
            except BaseException:
                self._may_have_leftovers = True
                raise
            finally:
                self._delete_leftovers_if_needed()

    def _delete_leftovers_if_needed(self) -> None:
        if self._may_have_leftovers:
            self._may_have_leftovers = False
            self._delete_leftovers()

    def _delete_leftovers(self) -> None:
        """Delete locks, temporary files and quarantines of git processes that no longer run."""
        for lock in (
            *self.folder.glob("*.lock"),
            *self.folder.glob("refs/**/*.lock"),
            *self.folder.glob("objects/**/*.lock"),
        ):
            lock.unlink(missing_ok=True)
        for leftover in (
            self.folder / "gc.pid",
            *self.objects.glob("pack/tmp_*"),
            *self.objects.glob("pack/.tmp-*"),
            *self.objects.glob("pack/*.keep"),
            *self.objects.glob("??/tmp_obj_*"),
        ):
            leftover.unlink(missing_ok=True)
        for quarantine in (*self.objects.glob("incoming-*"), *self.objects.glob("tmp_objdir-incoming-*")):
            shutil.rmtree(quarantine, ignore_errors=True)

    @contextmanager
    def create_scratch_folder(self) -> Iterator[Path]:
        """Create a folder on the same disk and remove it at the end."""
        folder = self._scratch / secrets.token_hex(8)
        folder.mkdir(parents=True, mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def create_quarantine(self) -> Iterator[Path]:
        """Create a temporary object folder, which is used only by git processes that get its path, and remove it at the end."""
        with self.create_scratch_folder() as folder:
            (folder / "info").mkdir()
            (folder / "pack").mkdir()
            (folder / "info" / "alternates").write_text(f"{self.objects}\n")
            yield folder

    # contents ---------------------------------------------------------------------------------------------------------

    async def resolve(self, rev: str) -> str | None:
        """Return the commit that a ref, an id or a git expression names. None if there is none."""
        result = await self.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}", ok=(0, 1, 128)
        )
        found = result.stdout.decode(errors="replace").strip()
        return found if result.code == 0 and COMMIT_ID.fullmatch(found) else None

    async def has_commit(self, commit: str) -> bool:
        return bool(await self.filter_known((commit,)))

    async def filter_known(self, commits: Sequence[str]) -> list[str]:
        """Return those of the commits that exist in this repository, in the same order."""
        ids = [commit for commit in commits if COMMIT_ID.fullmatch(commit)]
        if not ids:
            return []
        result = await self.run(
            "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin="".join(f"{c}\n" for c in ids).encode()
        )
        existing = {line.split()[0] for line in result.stdout.decode().splitlines() if line.endswith(" commit")}
        return [commit for commit in ids if commit in existing]

    async def list_refs(self, prefix: str) -> dict[str, str]:
        """Return the full names of refs at or below `prefix` and the objects they point at (for an annotated tag, the tag object).

        Refs whose names are not UTF-8 are omitted.
        """
        result = await self.run("for-each-ref", "--format=%(objectname)%09%(refname)", prefix.rstrip("/"))
        return await asyncio.to_thread(lambda: {name: commit for commit, name in parse_refs(result.stdout)})

    async def set_ref(self, name: str, commit: str) -> None:
        """Set a ref. Idempotent. The object must exist."""
        async with self.writing():
            await self.set_refs({name: commit})

    async def delete_ref(self, name: str) -> None:
        """Delete a ref. Idempotent."""
        async with self.writing():
            await self.run("update-ref", "-d", name)

    async def set_refs(self, refs: Mapping[str, str]) -> None:
        """Set all of these refs or none. The caller must be in `writing`."""
        await self._update_refs([f"update {name} {commit}" for name, commit in refs.items()])

    async def delete_refs(self, names: Iterable[str]) -> None:
        """Delete all of these refs or none. Idempotent. The caller must be in `writing`."""
        await self._update_refs([f"delete {name}" for name in names])

    async def _update_refs(self, commands: Sequence[str]) -> None:
        if commands:
            lines = "\n".join(("start", *commands, "prepare", "commit", ""))
            await self.run("update-ref", "--stdin", stdin=lines.encode())

    async def is_ancestor(self, a: str, b: str) -> bool:
        """Return whether `a` is an ancestor of `b` or the same commit. False if one of them does not exist here."""
        if len(await self.filter_known((a, b))) < 2:
            return False
        return (await self.run("merge-base", "--is-ancestor", a, b, ok=(0, 1))).code == 0

    async def is_reachable(self, commit: str, refs: Sequence[str]) -> bool:
        """Return whether one of these refs, given by full name, contains `commit` in its history.

        Refs that do not exist are ignored. False if `commit` is not a full commit id or does not exist here.
        """
        names = {name for name in refs if name.startswith("refs/")}
        if not names or not await self.has_commit(commit):
            return False
        result = await self.run("for-each-ref", f"--contains={commit}", "--format=%(refname)", *sorted(names))
        # git treats a name as a pattern, which also matches refs below it
        return not names.isdisjoint(result.stdout.decode(errors="replace").splitlines())

    async def list_refs_containing(self, commit: str) -> list[str]:
        """Return the full names of all refs that contain `commit`, which must exist, in their history."""
        result = await self.run("for-each-ref", f"--contains={commit}", "--format=%(refname)")
        return result.stdout.decode(errors="replace").split("\n")[:-1]

    async def find_merge_base(self, a: str, b: str) -> str | None:
        """Return the best common ancestor of two commits; None if they have none."""
        result = await self.run("merge-base", "--end-of-options", a, b, ok=(0, 1))
        return result.stdout.decode().strip() or None

    async def get_tree(self, commit: str) -> str:
        result = await self.run("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")
        return result.stdout.decode().strip()

    async def commit_tree(
        self, tree: str, parents: Sequence[str], message: str, *, author: Identity, committer: Identity
    ) -> str:
        """Create a commit that no ref names, and return its id."""
        settings = {
            "author.name": author.name,
            "author.email": author.email,
            "committer.name": committer.name,
            "committer.email": committer.email,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        parent_options = [word for parent in parents for word in ("-p", parent)]
        async with self.writing():
            result = await self.run(
                *options, "commit-tree", "--no-gpg-sign", *parent_options, "-F", "-", tree, stdin=message.encode()
            )
        return result.stdout.decode().strip()

    async def count_commits(self, range: str) -> int:
        return int((await self.run("rev-list", "--count", "--end-of-options", range)).stdout)

    def get_packs_size(self) -> int:
        size = 0
        for pack in self.objects.glob("pack/*.pack"):
            with suppress(FileNotFoundError):
                size += pack.stat().st_size
        return size

    def get_objects_size(self) -> int:
        """Return the size of all files of the object store: packs with their indexes, loose objects, temporary files."""
        size = 0
        for folder, _, names in os.walk(self.objects):
            for name in names:
                with suppress(FileNotFoundError):
                    size += Path(folder, name).lstat().st_size
        return size


def parse_refs(listing: bytes) -> Iterator[tuple[str, str]]:
    """Parse lines of a value, a tab and a ref name. Skips names that are not UTF-8, because they cannot be stored or shown.

    Only a newline ends a line: names may contain other characters that Python treats as line ends.
    """
    for line in io.BytesIO(listing):  # one by one, so that other threads can run
        value, tab, name = line.removesuffix(b"\n").partition(b"\t")
        with suppress(UnicodeDecodeError):
            if tab:
                yield value.decode(), name.decode()


async def list_remote_refs(
    git: Git, remote: Remote, credential: Credential | None, *patterns: str, symref: bool = False
) -> bytes:
    """Return the output of `ls-remote`. Parse it with `parse_refs` in a thread, because that may take long.

    Raises the errors of remotes that Git.run raises, and TooMuchError.
    """
    options = ("--symref",) if symref else ()
    result = await git.run(
        *("ls-remote", *options, "--", remote.url, *patterns),
        cwd=None, remote=remote, credential=credential, limit=REFS_LIMIT, timeout_s=_REFS_TIMEOUT_S, memory=_REFS_MEMORY_BYTES,
    )  # fmt: skip
    if result.truncated:
        raise TooMuchError(
            f"The repository has too many branches and tags: their list is larger than {REFS_LIMIT >> 20} MiB. Delete unused "
            "ones, then try again."
        )
    return result.stdout
