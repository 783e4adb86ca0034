"""Bundles of a mirror: made quickly, and the ones that many sandboxes begin with made once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sandyard.kit.errors import NotFoundError
from sandyard.platform.domain.git.bare import Bare
from sandyard.platform.domain.git.errors import TooMuchError
from sandyard.platform.domain.git.model import Bundle, PackIndex

KEPT, UNUSED_S = 3, 24 * 3600.0
_AT_ONCE = 4000
# what is in the mirror's packs goes over as it is: looking for better deltas takes minutes
_QUICK = ("-c", "pack.window=0")


class Bundles:
    """A bundle is held from `make` to `release`, and not removed meanwhile. Kept ones survive a restart."""

    def __init__(self, bare: Bare, *, limit: int) -> None:
        self._bare = bare
        self._limit = limit
        self._folder = bare.own / "bundles"
        self._held: Counter[str] = Counter()
        self._making = asyncio.Lock()

    async def make(
        self, commit: str, *, ref: str, have: Sequence[str], depth: int | None, shallow: Sequence[str]
    ) -> Bundle:
        if not await self._bare.has(commit):
            raise NotFoundError(f"The mirror has no commit {commit}.")
        self._folder.mkdir(parents=True, exist_ok=True)
        bundle = await (self._increment(commit, ref, have, shallow) if have else self._full(commit, ref, depth))
        if bundle.size > self._limit:
            _remove(Path(bundle.path))
            raise TooMuchError(
                f"There are {bundle.size >> 20} MiB to transfer; the limit is {self._limit >> 20} MiB. An administrator can "
                "raise it (git_transfer_limit)."
            )
        self._held[bundle.path] += 1
        return bundle

    async def release(self, bundle: Bundle) -> None:
        self._held[bundle.path] -= 1
        if self._held[bundle.path] > 0:
            return
        del self._held[bundle.path]
        if Path(bundle.path).name.startswith("part-"):
            _remove(Path(bundle.path))
        self._drop_old(KEPT)

    async def drop(self) -> None:
        """Those that nobody holds, and nobody has used for a day."""
        async with self._making:
            for path in self._folder.glob("full-*.bundle"):
                if not self._held[str(path)] and path.stat().st_mtime < time.time() - UNUSED_S:
                    _remove(path)

    # -------------------------------------------------------------------------------------------------------------------

    async def _full(self, commit: str, ref: str, depth: int | None) -> Bundle:
        """The kept one, or a new one to be kept. One is made at a time: who wants the same waits and then finds it."""
        name = f"full-{commit}-{depth or 'all'}-{hashlib.sha256(ref.encode()).hexdigest()[:12]}"
        path = self._folder / f"{name}.bundle"
        async with self._making:
            with suppress(FileNotFoundError):
                found = _kept(path)
                path.touch()
                return found
            shallow = await self._boundary(commit, depth) if depth else ()
            made, pack = await self._pack(commit, ref, shallow, path.with_suffix(".idx"))
            known = {"shallow": shallow, "offset": len(_header(commit, ref)), "pack": pack}
            path.with_suffix(".json").write_text(json.dumps(known))
            await asyncio.to_thread(_settle, made, path)
            self._drop_old(KEPT, besides=path)
            return _kept(path)

    async def _pack(self, commit: str, ref: str, shallow: Sequence[str], index: Path) -> tuple[Path, str]:
        """A bundle of the whole history with the index of its pack, and the pack's name. Git writes an index along with a pack, but not
        with a bundle: to make it afterwards takes as long as to fetch the repository."""
        path = self._folder / f"part-{secrets.token_hex(8)}.bundle"
        with self._repository(commit, ref, shallow) as folder:
            done = await self._bare.git.run(
                *(*_QUICK, "-c", "core.fsync=none"),  # it is copied, and then written to the disk by `_settle`
                f"--git-dir={folder}",
                *("pack-objects", "--quiet", "--revs", "--delta-base-offset", str(folder / "made")),
                cwd=folder,
                objects=self._bare.objects,
                stdin=f"{commit}\n".encode(),
            )
            name = done.stdout.decode().strip()
            pack = folder / f"made-{name}.pack"
            try:
                await asyncio.to_thread(_join, _header(commit, ref), pack, path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            pack.with_suffix(".idx").replace(index)
        return path, name

    async def _increment(self, commit: str, ref: str, have: Sequence[str], shallow: Sequence[str]) -> Bundle:
        made = await self._create(commit, ref, await self._bare.known(have), shallow)
        return Bundle(str(made), made.stat().st_size, ())

    async def _create(self, commit: str, ref: str, have: Sequence[str], shallow: Sequence[str]) -> Path:
        path = self._folder / f"part-{secrets.token_hex(8)}.bundle"
        with self._repository(commit, ref, shallow) as folder:

            async def run(*arguments: str) -> list[str]:
                where = f"--git-dir={folder}"
                done = await self._bare.git.run(*_QUICK, where, *arguments, cwd=folder, objects=self._bare.objects)
                return done.stdout.decode().split()

            if have and not await run("rev-list", "--max-count=1", commit, "--not", *have):
                # git makes no empty bundle: then it has the one commit, which whoever gets it has already
                have = await run("rev-parse", f"{commit}^@")
            # what a bitmap leaves out is all that the mirror could reach from there; a receiver without its whole history has less
            exact = ("-c", "pack.useBitmaps=false") if have else ()
            try:
                await run(*exact, "bundle", "create", "--quiet", str(path), ref, *(f"^{one}" for one in have))
            except BaseException:
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
                raise
        return path

    @contextmanager
    def _repository(self, commit: str, ref: str, shallow: Sequence[str]) -> Iterator[Path]:
        """One of nothing but that ref, for git with the mirror's objects: neither its refs nor its whole history are in the way."""
        with self._bare.scratch() as folder:
            (folder / "refs").mkdir()
            (folder / "HEAD").write_text("ref: refs/heads/none\n")
            (folder / "packed-refs").write_text(f"{commit} {ref}\n")
            if shallow:
                (folder / "shallow").write_text("".join(f"{one}\n" for one in shallow))
            yield folder

    async def _boundary(self, commit: str, depth: int) -> tuple[str, ...]:
        """The commits that a history of `depth` generations ends with, and that have parents outside of it."""
        parents = await self._parents(f"--max-count={_AT_ONCE}", commit)
        level, inside = {commit}, {commit}
        for _ in range(depth - 1):
            missing = sorted(one for one in level if one not in parents)
            if missing:
                parents |= await self._parents("--no-walk=unsorted", *missing)
            level = {parent for one in level for parent in parents[one]} - inside
            inside |= level
            if not level:
                return ()
        missing = sorted(one for one in level if one not in parents)
        if missing:
            parents |= await self._parents("--no-walk=unsorted", *missing)
        return tuple(sorted(one for one in level if not inside.issuperset(parents[one])))

    async def _parents(self, *arguments: str) -> dict[str, list[str]]:
        stdin = "".join(f"{one}\n" for one in arguments[1:]).encode()
        done = await self._bare.run("rev-list", "--parents", arguments[0], "--stdin", stdin=stdin)
        lines = (line.split() for line in done.stdout.decode().splitlines())
        return {first: rest for first, *rest in lines}

    def _drop_old(self, keep: int, besides: Path | None = None) -> None:
        """All but the `keep` that were used last. What is held, or just made, stays."""
        found = sorted(self._folder.glob("full-*.bundle"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[keep:]:
            if not self._held[str(path)] and path != besides:
                _remove(path)

    def sweep(self) -> None:
        """After a restart: nobody waits for these any more."""
        if self._folder.is_dir():
            for path in (*self._folder.glob("part-*"), *self._folder.glob("*.lock")):
                path.unlink(missing_ok=True)


def _kept(path: Path) -> Bundle:
    """FileNotFoundError when there is none."""
    size, known = path.stat().st_size, json.loads(path.with_suffix(".json").read_text())
    index = path.with_suffix(".idx")
    whole = known["pack"] is not None and index.exists()
    found = PackIndex(str(index), known["offset"], known["pack"]) if whole else None
    return Bundle(str(path), size, tuple(known["shallow"]), found)


def _header(commit: str, ref: str) -> bytes:
    """What a bundle of one ref has before its pack."""
    version = "# v2 git bundle" if len(commit) == 40 else "# v3 git bundle\n@object-format=sha256"
    return f"{version}\n{commit} {ref}\n\n".encode()


def _join(header: bytes, pack: Path, bundle: Path) -> None:
    with pack.open("rb") as source, bundle.open("wb") as target:
        target.write(header)
        target.flush()
        shutil.copyfileobj(source, target, 1 << 20)


def _settle(made: Path, path: Path) -> None:
    """Under its lasting name only when it is on the disk: it will be trusted after a power cut."""
    for one in (path.with_suffix(".idx"), made):
        with one.open("rb") as file:
            os.fsync(file.fileno())
    made.replace(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    for also in (".json", ".idx"):
        path.with_suffix(also).unlink(missing_ok=True)
