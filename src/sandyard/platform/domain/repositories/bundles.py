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

MAX_CACHED, MAX_UNUSED_S = 3, 24 * 3600.0
_PARENTS_BATCH = 4000


class BundleStore:
    """The bundles of a mirror. One is in use from `create` to `release` and is not removed meanwhile. Cached ones survive a restart."""

    def __init__(self, repository: BareRepository, *, limit: int) -> None:
        self._repository = repository
        self._limit = limit
        self._folder = repository.own_folder / "bundles"
        self._uses: Counter[str] = Counter()
        self._creation_lock = asyncio.Lock()

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
        if not await self._repository.has_commit(commit):
            raise NotFoundError(f"The mirror has no commit {commit}.")
        self._folder.mkdir(parents=True, exist_ok=True)
        bundle = await (
            self._create_incremental_bundle(commit, ref, have, shallow)
            if have
            else self._get_full_bundle(commit, ref, depth)
        )
        if bundle.size > self._limit:
            _remove(Path(bundle.path))
            raise TooMuchError(
                f"There are {bundle.size >> 20} MiB to transfer; the limit is {self._limit >> 20} MiB. An administrator can "
                "raise it (git_transfer_limit)."
            )
        self._uses[bundle.path] += 1
        return bundle

    async def release(self, bundle: Bundle) -> None:
        """Remove the bundle unless it is cached."""
        self._uses[bundle.path] -= 1
        if self._uses[bundle.path] > 0:
            return
        del self._uses[bundle.path]
        if Path(bundle.path).name.startswith("part-"):
            _remove(Path(bundle.path))
        self._remove_oldest(MAX_CACHED)

    async def remove_unused(self) -> None:
        """Delete cached bundles that are not in use and were not used for a day."""
        async with self._creation_lock:
            for path in self._folder.glob("full-*.bundle"):
                if not self._uses[str(path)] and path.stat().st_mtime < time.time() - MAX_UNUSED_S:
                    _remove(path)

    # helpers -----------------------------------------------------------------------------------------------------------

    async def _get_full_bundle(self, commit: str, ref: str, depth: int | None) -> Bundle:
        """Return the cached bundle, or create and cache it. One is created at a time, so that others who want the same find it."""
        name = f"full-{commit}-{depth or 'all'}-{hashlib.sha256(ref.encode()).hexdigest()[:12]}"
        path = self._folder / f"{name}.bundle"
        async with self._creation_lock:
            with suppress(FileNotFoundError):
                found = _load_cached(path)
                path.touch()
                return found
            shallow = await self._find_boundary(commit, depth) if depth else ()
            bundle, pack = await self._create_with_index(commit, ref, shallow, path.with_suffix(".idx"))
            metadata = {"shallow": shallow, "offset": len(_make_bundle_header(commit, ref)), "pack": pack}
            path.with_suffix(".json").write_text(json.dumps(metadata))
            await asyncio.to_thread(_sync_and_rename, bundle, path)
            self._remove_oldest(MAX_CACHED, except_path=path)
            return _load_cached(path)

    async def _create_with_index(self, commit: str, ref: str, shallow: Sequence[str], index: Path) -> tuple[Path, str]:
        """Create a bundle of the whole history and the index of its pack. Returns its path and the pack's name.

        Git writes an index with a pack but not with a bundle; creating it later takes as long as fetching the
        repository.
        """
        path = self._folder / f"part-{secrets.token_hex(8)}.bundle"
        with self._scratch_repository(commit, ref, shallow) as folder:
            result = await self._repository.pack(
                folder,
                *("-c", "core.fsync=none"),  # it is copied, and then synced to disk by `_sync_and_rename`
                *("pack-objects", "--quiet", "--revs", "--delta-base-offset", str(folder / "made")),
                stdin=f"{commit}\n".encode(),
            )
            name = result.stdout.decode().strip()
            pack = folder / f"made-{name}.pack"
            try:
                await asyncio.to_thread(_write_bundle, _make_bundle_header(commit, ref), pack, path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            pack.with_suffix(".idx").replace(index)
        return path, name

    async def _create_incremental_bundle(
        self, commit: str, ref: str, have: Sequence[str], shallow: Sequence[str]
    ) -> Bundle:
        path = await self._create_bundle(commit, ref, await self._repository.filter_known(have), shallow)
        return Bundle(str(path), path.stat().st_size, ())

    async def _create_bundle(self, commit: str, ref: str, have: Sequence[str], shallow: Sequence[str]) -> Path:
        path = self._folder / f"part-{secrets.token_hex(8)}.bundle"
        with self._scratch_repository(commit, ref, shallow) as folder:

            async def run(*arguments: str) -> list[str]:
                return (await self._repository.pack(folder, *arguments)).stdout.decode().split()

            if have and not await run("rev-list", "--max-count=1", commit, "--not", *have):
                # git refuses to create an empty bundle: include this one commit, which the receiver has already
                have = await run("rev-parse", f"{commit}^@")
            # a bitmap excludes everything that the mirror can reach from there; a receiver with a shallow history has less
            exact = ("-c", "pack.useBitmaps=false") if have else ()
            try:
                await run(*exact, "bundle", "create", "--quiet", str(path), ref, *(f"^{known}" for known in have))
            except BaseException:
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
                raise
        return path

    @contextmanager
    def _scratch_repository(self, commit: str, ref: str, shallow: Sequence[str]) -> Iterator[Path]:
        """Create a repository with only this ref, for git commands that use the mirror's objects without its refs and history."""
        with self._repository.create_scratch_folder() as folder:
            (folder / "refs").mkdir()
            (folder / "HEAD").write_text("ref: refs/heads/none\n")
            (folder / "packed-refs").write_text(f"{commit} {ref}\n")
            if shallow:
                (folder / "shallow").write_text("".join(f"{boundary}\n" for boundary in shallow))
            yield folder

    async def _find_boundary(self, commit: str, depth: int) -> tuple[str, ...]:
        """Return the last commits of a history of `depth` generations that have parents outside of it."""
        parents = await self._list_parents(f"--max-count={_PARENTS_BATCH}", commit)
        generation, inside = {commit}, {commit}
        for _ in range(depth - 1):
            missing = sorted(commit for commit in generation if commit not in parents)
            if missing:
                parents |= await self._list_parents("--no-walk=unsorted", *missing)
            generation = {parent for commit in generation for parent in parents[commit]} - inside
            inside |= generation
            if not generation:
                return ()
        missing = sorted(commit for commit in generation if commit not in parents)
        if missing:
            parents |= await self._list_parents("--no-walk=unsorted", *missing)
        return tuple(sorted(commit for commit in generation if not inside.issuperset(parents[commit])))

    async def _list_parents(self, option: str, *commits: str) -> dict[str, list[str]]:
        stdin = "".join(f"{commit}\n" for commit in commits).encode()
        result = await self._repository.run("rev-list", "--parents", option, "--stdin", stdin=stdin)
        lines = (line.split() for line in result.stdout.decode().splitlines())
        return {commit: parents for commit, *parents in lines}

    def _remove_oldest(self, keep: int, except_path: Path | None = None) -> None:
        """Delete all but the `keep` bundles that were used last. Bundles in use and the one just created stay."""
        found = sorted(self._folder.glob("full-*.bundle"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[keep:]:
            if not self._uses[str(path)] and path != except_path:
                _remove(path)

    def remove_temporary_files(self) -> None:
        """Delete temporary files that a crash left behind."""
        if self._folder.is_dir():
            for path in (*self._folder.glob("part-*"), *self._folder.glob("*.lock")):
                path.unlink(missing_ok=True)


def _load_cached(path: Path) -> Bundle:
    """Load a cached bundle. Raises FileNotFoundError if there is none."""
    size, metadata = path.stat().st_size, json.loads(path.with_suffix(".json").read_text())
    index = path.with_suffix(".idx")
    has_index = metadata["pack"] is not None and index.exists()
    pack_index = PackIndex(str(index), metadata["offset"], metadata["pack"]) if has_index else None
    return Bundle(str(path), size, tuple(metadata["shallow"]), pack_index)


def _make_bundle_header(commit: str, ref: str) -> bytes:
    """Return the header that precedes the pack in a bundle of one ref."""
    version = "# v2 git bundle" if len(commit) == 40 else "# v3 git bundle\n@object-format=sha256"
    return f"{version}\n{commit} {ref}\n\n".encode()


def _write_bundle(header: bytes, pack: Path, bundle: Path) -> None:
    with pack.open("rb") as source, bundle.open("wb") as target:
        target.write(header)
        target.flush()
        shutil.copyfileobj(source, target, 1 << 20)


def _sync_and_rename(temporary: Path, path: Path) -> None:
    """Rename the bundle to its final name only after it is on disk, because it is trusted after a power failure."""
    for part in (path.with_suffix(".idx"), temporary):
        with part.open("rb") as file:
            os.fsync(file.fileno())
    temporary.replace(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    for suffix in (".json", ".idx"):
        path.with_suffix(suffix).unlink(missing_ok=True)
