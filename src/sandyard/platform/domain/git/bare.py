"""A bare repository on the platform's machine, as everything that works on one sees it."""

from __future__ import annotations

import asyncio
import io
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from sandyard.platform.domain.git.errors import TooMuchError
from sandyard.platform.domain.git.host import OUTPUT_LIMIT, Finished, Git, Stdin
from sandyard.platform.domain.git.model import Credential, Identity
from sandyard.platform.domain.git.remote import Remote

COMMIT = re.compile(r"[0-9a-f]{40}")
OBJECT_LIMIT = 1 << 30
"""Of memory git may ask for at once: a few bytes of a delta, or of zeros, can unfold to as much as they like."""
MEMORY = 1 << 30
"""For one git process that reads. A few bytes of trees can unfold to any number of paths, which git keeps in memory."""
REFS_LIMIT = 16 << 20
"""Bytes of the list of a remote's branches and tags: some 200,000 of them."""
READ_TIMEOUT_S = 120.0
AT_ONCE = 4
"""Git processes at the same time in all repositories of one person, so that they leave room for others."""
TAKEN_AT_ONCE = 2
"""Bundles out of sandboxes that are read at the same time for one person."""
_BIG_FILE = "8m"
"""A larger file is shown as a binary one: nobody reads its differences, and they cost memory."""


class Share:
    """What the repositories of one person may use at the same time."""

    def __init__(self) -> None:
        self.processes = asyncio.Semaphore(AT_ONCE)
        self.taking = asyncio.Semaphore(TAKEN_AT_ONCE)


class Bare:
    """Any number of readers and writers, since git locks each ref while it writes it; `alone` keeps writers out.

    Only one object of this class per folder in one process, and no other process writes there: what an earlier one left behind when
    it was killed is removed when this is made.
    """

    def __init__(self, git: Git, folder: Path, share: Callable[[], Awaitable[Share]]) -> None:
        """`share`: that of whom the repository belongs to."""
        self.git = git
        self.folder = folder
        self.own = folder / "sandyard"  # what is ours beside what is git's
        self._scratch = self.own / "scratch"
        self._door = asyncio.Lock()
        self.tree_paths: dict[bytes, int] = {}  # of the trees that were counted; see tree_paths.py
        self.share = share
        self._writers = 0
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._suspect = False  # a git has failed or was stopped, and may have left something
        self._sweep()
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
        largest: int = OBJECT_LIMIT,
        memory: int | None = None,
    ) -> Finished:
        """Git in this repository, without any remote, and with bounded memory (MEMORY when None) whatever the objects are."""
        async with (await self.share()).processes:
            return await self.git.run(
                f"--git-dir={self.folder}",
                *arguments,
                cwd=self.folder,
                ok=ok,
                limit=limit,
                stdin=stdin,
                objects=objects,
                timeout_s=timeout_s,
                largest=largest,
                memory=MEMORY if memory is None else memory,
            )

    async def read(self, *arguments: str, limit: int = OUTPUT_LIMIT) -> tuple[bytes, bool]:
        """What git wrote, and whether it was cut off at `limit`. For verbs that change nothing."""
        big = ("-c", f"core.bigFileThreshold={_BIG_FILE}")
        done = await self.run(*big, *arguments, limit=limit, timeout_s=READ_TIMEOUT_S)
        return done.stdout, done.truncated

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Whoever writes does so in here. What a git has left behind that failed or was stopped (locks, and as much of a pack as it
        had received) is removed as soon as nobody writes any more."""
        async with self._door:
            self._writers += 1
            self._nobody.clear()
        try:
            yield
        except BaseException:
            self._suspect = True
            raise
        finally:
            self._writers -= 1
            if not self._writers:
                self._sweep_if_suspect()
                self._nobody.set()

    @property
    def busy(self) -> bool:
        return self._writers > 0

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Waits until nobody writes, and keeps all others waiting."""
        async with self._door:
            await self._nobody.wait()
            try:
                yield
            except BaseException:
                self._suspect = True
                raise
            finally:
                self._sweep_if_suspect()

    def _sweep_if_suspect(self) -> None:
        if self._suspect:
            self._suspect = False
            self._sweep()

    def _sweep(self) -> None:
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
    def scratch(self) -> Iterator[Path]:
        """A new folder on the same disk, gone afterwards."""
        folder = self._scratch / secrets.token_hex(8)
        folder.mkdir(parents=True, mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def quarantine(self) -> Iterator[Path]:
        """A place for new objects that nothing sees which is not told of it, and that is gone afterwards."""
        with self.scratch() as folder:
            (folder / "info").mkdir()
            (folder / "pack").mkdir()
            (folder / "info" / "alternates").write_text(f"{self.objects}\n")
            yield folder

    # what is in it -----------------------------------------------------------------------------------------------------

    async def resolve(self, rev: str) -> str | None:
        """The commit a ref, an id or an expression of git names; None when there is none."""
        done = await self.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}", ok=(0, 1, 128)
        )
        found = done.stdout.decode(errors="replace").strip()
        return found if done.code == 0 and COMMIT.fullmatch(found) else None

    async def has(self, commit: str) -> bool:
        return bool(await self.known((commit,)))

    async def known(self, commits: Sequence[str]) -> list[str]:
        """Those of them that are commits of this repository, in their order."""
        asked = [commit for commit in commits if COMMIT.fullmatch(commit)]
        if not asked:
            return []
        done = await self.run(
            "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin="".join(f"{c}\n" for c in asked).encode()
        )
        there = {line.split()[0] for line in done.stdout.decode().splitlines() if line.endswith(" commit")}
        return [commit for commit in asked if commit in there]

    async def refs(self, prefix: str) -> dict[str, str]:
        """Full names of refs at or below `prefix`, and what each points at (of an annotated tag, the tag itself). A ref whose name is
        not UTF-8 is left out."""
        done = await self.run("for-each-ref", "--format=%(objectname)%09%(refname)", prefix.rstrip("/"))
        return await asyncio.to_thread(lambda: {name: commit for commit, name in listed(done.stdout)})

    async def set_ref(self, name: str, commit: str) -> None:
        """Idempotent. The object must be there."""
        async with self.writing():
            await self.set_refs({name: commit})

    async def drop_ref(self, name: str) -> None:
        """Idempotent."""
        async with self.writing():
            await self.run("update-ref", "-d", name)

    async def set_refs(self, refs: dict[str, str]) -> None:
        """All of them or none; the caller is in `writing`."""
        lines = "".join(f"update {name} {commit}\n" for name, commit in refs.items())
        await self.run("update-ref", "--stdin", stdin=f"start\n{lines}prepare\ncommit\n".encode())

    async def is_ancestor(self, a: str, b: str) -> bool:
        """Also when they are the same. False when one of them is not here."""
        if len(await self.known((a, b))) < 2:
            return False
        return (await self.run("merge-base", "--is-ancestor", a, b, ok=(0, 1))).code == 0

    async def reaches(self, commit: str, refs: Sequence[str]) -> bool:
        """Whether one of these refs, by their full names, is at `commit` or has it in its history. Those that are not there do not
        count. False for what is no full id of a commit, or not here."""
        named = {name for name in refs if name.startswith("refs/")}
        if not named or not await self.has(commit):
            return False
        done = await self.run("for-each-ref", f"--contains={commit}", "--format=%(refname)", *sorted(named))
        # git takes a name for a pattern, which also means what is below it
        return not named.isdisjoint(done.stdout.decode(errors="replace").splitlines())

    async def merge_base(self, a: str, b: str) -> str | None:
        done = await self.run("merge-base", "--end-of-options", a, b, ok=(0, 1))
        return done.stdout.decode().strip() or None

    async def tree_of(self, commit: str) -> str:
        return (
            (await self.run("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")).stdout.decode().strip()
        )

    async def commit_tree(
        self, tree: str, parents: Sequence[str], message: str, *, author: Identity, committer: Identity
    ) -> str:
        """A commit that no ref names."""
        named = {
            "author.name": author.name,
            "author.email": author.email,
            "committer.name": committer.name,
            "committer.email": committer.email,
        }
        who = [word for name, value in named.items() for word in ("-c", f"{name}={value}")]
        onto = [word for parent in parents for word in ("-p", parent)]
        async with self.writing():
            done = await self.run(*who, "commit-tree", "--no-gpg-sign", *onto, "-F", "-", tree, stdin=message.encode())
        return done.stdout.decode().strip()

    async def count(self, range: str) -> int:
        return int((await self.run("rev-list", "--count", "--end-of-options", range)).stdout)

    def packs_size(self) -> int:
        size = 0
        for pack in self.objects.glob("pack/*.pack"):
            with suppress(FileNotFoundError):
                size += pack.stat().st_size
        return size


def listed(listing: bytes) -> Iterator[tuple[str, str]]:
    """Of lines with a value, a tab and the name of a ref: those whose name is UTF-8, and so can be stored and shown.

    Only a newline ends a line: names may have other characters in them that end a line for Python.
    """
    for line in io.BytesIO(listing):  # one by one: other threads get their turn
        value, tab, name = line.removesuffix(b"\n").partition(b"\t")
        with suppress(UnicodeDecodeError):
            if tab:
                yield value.decode(), name.decode()


async def list_remote(
    git: Git, remote: Remote, credential: Credential | None, *patterns: str, symref: bool = False
) -> bytes:
    """What `ls-remote` says, for `listed`, which may take long: in a thread. Raises what Git.run raises of remotes, and TooMuchError."""
    options = ("--symref",) if symref else ()
    done = await git.run(
        *("ls-remote", *options, "--", remote.url, *patterns),
        cwd=None, remote=remote, credential=credential, limit=REFS_LIMIT,
    )  # fmt: skip
    if done.truncated:
        raise TooMuchError(
            f"The repository has too many branches and tags: their list is larger than {REFS_LIMIT >> 20} MiB. Delete unused "
            "ones, then try again."
        )
    return done.stdout
