"""Bundles of a mirror. Those that many sandboxes start with are cached."""

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
from sandyard.platform.domain.repositories.bare_repository import BareRepository
from sandyard.platform.domain.repositories.errors import TooMuchError
from sandyard.platform.domain.repositories.model import Bundle, PackIndex

MAX_CACHED, UNUSED_S = 3, 24 * 3600.0
_BATCH = 4000
# deltas are copied from the mirror's packs as they are: searching for better ones takes minutes
_FAST_PACKING = ("-c", "pack.window=0")


class BundleStore:
    """A bundle is in use from `create` to `release` and is not removed meanwhile. Cached bundles survive a restart."""

    def __init__(self, repository: BareRepository, *, limit: int) -> None:
        self._repository = repository
        self._limit = limit
        self._folder = repository.own / "bundles"
        self._held: Counter[str] = Counter()
        self._making = asyncio.Lock()

    async def create(
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
        if not await self._repository.has(commit):
            raise NotFoundError(f"The mirror has no commit {commit}.")
        self._folder.mkdir(parents=True, exist_ok=True)
        bundle = await (
            self._incremental_bundle(commit, ref, have, shallow) if have else self._full_bundle(commit, ref, depth)
        )
        if bundle.size > self._limit:
            _remove(Path(bundle.path))
            raise TooMuchError(
                f"There are {bundle.size >> 20} MiB to transfer; the limit is {self._limit >> 20} MiB. An administrator can "
                "raise it (git_transfer_limit)."
            )
        self._held[bundle.path] += 1
        return bundle

    async def release(self, bundle: Bundle) -> None:
        """Remove the bundle unless it is cached."""
        self._held[bundle.path] -= 1
        if self._held[bundle.path] > 0:
            return
        del self._held[bundle.path]
        if Path(bundle.path).name.startswith("part-"):
            _remove(Path(bundle.path))
        self._drop_old(MAX_CACHED)

    async def remove_unused(self) -> None:
        """Delete cached bundles that are not in use and were not used for a day."""
        async with self._making:
            for path in self._folder.glob("full-*.bundle"):
                if not self._held[str(path)] and path.stat().st_mtime < time.time() - UNUSED_S:
                    _remove(path)

    # -------------------------------------------------------------------------------------------------------------------

    async def _full_bundle(self, commit: str, ref: str, depth: int | None) -> Bundle:
        """Return the cached bundle, or create and cache it. One is created at a time, so that others who want the same
        find it."""
        name = f"full-{commit}-{depth or 'all'}-{hashlib.sha256(ref.encode()).hexdigest()[:12]}"
        path = self._folder / f"{name}.bundle"
        async with self._making:
            with suppress(FileNotFoundError):
                found = _load_cached(path)
                path.touch()
                return found
            shallow = await self._find_boundary(commit, depth) if depth else ()
            made, pack = await self._pack(commit, ref, shallow, path.with_suffix(".idx"))
            known = {"shallow": shallow, "offset": len(_bundle_header(commit, ref)), "pack": pack}
            path.with_suffix(".json").write_text(json.dumps(known))
            await asyncio.to_thread(_sync_and_rename, made, path)
            self._drop_old(MAX_CACHED, besides=path)
            return _load_cached(path)

    async def _pack(self, commit: str, ref: str, shallow: Sequence[str], index: Path) -> tuple[Path, str]:
        """Create a bundle of the whole history and the index of its pack. Returns its path and the pack's name.

        Git writes an index with a pack but not with a bundle; creating it later takes as long as fetching the
        repository.
        """
        path = self._folder / f"part-{secrets.token_hex(8)}.bundle"
        with self._scratch_repository(commit, ref, shallow) as folder:
            done = await self._repository.git.run(
                *(
                    *_FAST_PACKING,
                    "-c",
                    "core.fsync=none",
                ),  # it is copied, and then synced to disk by `_sync_and_rename`
                f"--git-dir={folder}",
                *("pack-objects", "--quiet", "--revs", "--delta-base-offset", str(folder / "made")),
                cwd=folder,
                objects=self._repository.objects,
                stdin=f"{commit}\n".encode(),
            )
            name = done.stdout.decode().strip()
            pack = folder / f"made-{name}.pack"
            try:
                await asyncio.to_thread(_write_bundle, _bundle_header(commit, ref), pack, path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            pack.with_suffix(".idx").replace(index)
        return path, name

    async def _incremental_bundle(self, commit: str, ref: str, have: Sequence[str], shallow: Sequence[str]) -> Bundle:
        made = await self._create(commit, ref, await self._repository.filter_known(have), shallow)
        return Bundle(str(made), made.stat().st_size, ())

    async def _create(self, commit: str, ref: str, have: Sequence[str], shallow: Sequence[str]) -> Path:
        path = self._folder / f"part-{secrets.token_hex(8)}.bundle"
        with self._scratch_repository(commit, ref, shallow) as folder:

            async def run(*arguments: str) -> list[str]:
                where = f"--git-dir={folder}"
                done = await self._repository.git.run(
                    *_FAST_PACKING, where, *arguments, cwd=folder, objects=self._repository.objects
                )
                return done.stdout.decode().split()

            if have and not await run("rev-list", "--max-count=1", commit, "--not", *have):
                # git refuses to create an empty bundle: include this one commit, which the receiver has already
                have = await run("rev-parse", f"{commit}^@")
            # a bitmap excludes everything that the mirror can reach from there; a receiver with a shallow history has
            # less
            exact = ("-c", "pack.useBitmaps=false") if have else ()
            try:
                await run(*exact, "bundle", "create", "--quiet", str(path), ref, *(f"^{one}" for one in have))
            except BaseException:
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
                raise
        return path

    @contextmanager
    def _scratch_repository(self, commit: str, ref: str, shallow: Sequence[str]) -> Iterator[Path]:
        """Create a repository that has only this ref, for git commands that use the mirror's objects without its refs
        and history."""
        with self._repository.scratch() as folder:
            (folder / "refs").mkdir()
            (folder / "HEAD").write_text("ref: refs/heads/none\n")
            (folder / "packed-refs").write_text(f"{commit} {ref}\n")
            if shallow:
                (folder / "shallow").write_text("".join(f"{one}\n" for one in shallow))
            yield folder

    async def _find_boundary(self, commit: str, depth: int) -> tuple[str, ...]:
        """Return the last commits of a history of `depth` generations that have parents outside of it."""
        parents = await self._list_parents(f"--max-count={_BATCH}", commit)
        level, inside = {commit}, {commit}
        for _ in range(depth - 1):
            missing = sorted(one for one in level if one not in parents)
            if missing:
                parents |= await self._list_parents("--no-walk=unsorted", *missing)
            level = {parent for one in level for parent in parents[one]} - inside
            inside |= level
            if not level:
                return ()
        missing = sorted(one for one in level if one not in parents)
        if missing:
            parents |= await self._list_parents("--no-walk=unsorted", *missing)
        return tuple(sorted(one for one in level if not inside.issuperset(parents[one])))

    async def _list_parents(self, *arguments: str) -> dict[str, list[str]]:
        stdin = "".join(f"{one}\n" for one in arguments[1:]).encode()
        done = await self._repository.run("rev-list", "--parents", arguments[0], "--stdin", stdin=stdin)
        lines = (line.split() for line in done.stdout.decode().splitlines())
        return {first: rest for first, *rest in lines}

    def _drop_old(self, keep: int, besides: Path | None = None) -> None:
        """Delete all but the `keep` bundles that were used last. Bundles in use and the one just created stay."""
        found = sorted(self._folder.glob("full-*.bundle"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[keep:]:
            if not self._held[str(path)] and path != besides:
                _remove(path)

    def sweep(self) -> None:
        """Delete temporary files after a restart."""
        if self._folder.is_dir():
            for path in (*self._folder.glob("part-*"), *self._folder.glob("*.lock")):
                path.unlink(missing_ok=True)


def _load_cached(path: Path) -> Bundle:
    """Load a cached bundle. Raises FileNotFoundError if there is none."""
    size, known = path.stat().st_size, json.loads(path.with_suffix(".json").read_text())
    index = path.with_suffix(".idx")
    whole = known["pack"] is not None and index.exists()
    found = PackIndex(str(index), known["offset"], known["pack"]) if whole else None
    return Bundle(str(path), size, tuple(known["shallow"]), found)


def _bundle_header(commit: str, ref: str) -> bytes:
    """Return the header that precedes the pack in a bundle of one ref."""
    version = "# v2 git bundle" if len(commit) == 40 else "# v3 git bundle\n@object-format=sha256"
    return f"{version}\n{commit} {ref}\n\n".encode()


def _write_bundle(header: bytes, pack: Path, bundle: Path) -> None:
    with pack.open("rb") as source, bundle.open("wb") as target:
        target.write(header)
        target.flush()
        shutil.copyfileobj(source, target, 1 << 20)


def _sync_and_rename(made: Path, path: Path) -> None:
    """Rename the bundle to its final name only after it is on disk, because it is trusted after a power failure."""
    for one in (path.with_suffix(".idx"), made):
        with one.open("rb") as file:
            os.fsync(file.fileno())
    made.replace(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    for also in (".json", ".idx"):
        path.with_suffix(also).unlink(missing_ok=True)
