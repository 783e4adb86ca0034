"""Import commits from a sandbox into a mirror, after all of them were checked.

The pack is indexed in a quarantine beside the mirror's objects, and each object is checked as a server checks a push
from an untrusted client. Every object that the new refs need must exist, and no commit may have more files than git can
handle. A commit that the mirror already has must not be another sandbox's. Only then do the pack and the refs become part of the mirror.

`git fetch` of a bundle is not an option: git 2.39 skips these checks for bundles.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandyard.kit.errors import NoSpaceError, SandyardError
from sandyard.platform.domain.repositories.bare_repository import BareRepository
from sandyard.platform.domain.repositories.error_translation import clean_line
from sandyard.platform.domain.repositories.errors import (
    GitFailedError,
    GitTimeoutError,
    TooMuchError,
    UnsafeBundleError,
)
from sandyard.platform.domain.repositories.git_environment import HARMLESS_DEFECTS
from sandyard.platform.domain.repositories.tree_paths import check_paths

FOREIGN_COMMIT = (
    "The sandbox sent a commit of another sandbox, which was rejected. If the sandbox was created from a copy of the other one, "
    "add a commit and try again."
)
_SANDBOX_REFS = "refs/sandyard/"
_MAX_ALLOCATION = 200 << 20
"""Maximum size of one allocation by git. A few bytes of deltas can expand to any size, and again for each delta on top of them."""
_MAX_MEMORY = 2 << 30
"""Maximum memory of the git process that checks the data. It needs about a hundred bytes per object."""
_STREAM_ABOVE = "128m"
"""Larger files that are not deltas are checked as a stream, without loading them into memory."""
TIMEOUT_S = 120.0
_MAX_HEADER_BYTES = 1 << 20
_MAX_LINE_BYTES = 4 << 10
_SIGNATURES = (b"# v2 git bundle\n", b"# v3 git bundle\n")
_PREREQUISITE = re.compile(rb"-([0-9a-f]{40})(?: .*)?\n")
_REF = re.compile(rb"([0-9a-f]{40}) (\S+)\n")


@dataclass(frozen=True, slots=True)
class _Header:
    prerequisites: tuple[str, ...]
    refs: dict[str, str]


async def import_bundle(
    repository: BareRepository,
    path: Path,
    refs: Mapping[str, str],
    *,
    own_refs: Collection[str],
    shared_prefixes: tuple[str, ...],
    limit: int,
) -> dict[str, str]:
    """Import the commits of the bundle at `path`, with ref names translated by `refs`. The caller must be in `writing`.

    Besides new commits, the bundle may name those that are reachable from `own_refs` or from refs with one of the
    `shared_prefixes`. Returns the refs in the mirror and the commits they name (for a tag, the tagged commit). Raises UnsafeBundleError,
    and TooMuchError for more than `limit` bytes; the mirror is then unchanged. Idempotent.
    """
    if any(not name.startswith(_SANDBOX_REFS) for name in refs.values()):
        raise ValueError("data from a sandbox may only be stored below refs/sandyard/")
    _check_file(path, limit)
    with path.open("rb", buffering=0) as file, repository.create_quarantine() as objects:
        header = _parse_header(file)
        _check_refs(header, refs)
        missing = set(header.prerequisites) - set(await repository.filter_known(header.prerequisites))
        if missing:
            raise UnsafeBundleError(
                "The commits from the sandbox are based on commits that the platform does not have."
            )
        try:
            await _index_pack(repository, file, objects, limit)
            commits = await _check_connected(repository, header, objects)
            await check_paths(repository, tuple(commits), objects)
        except (GitTimeoutError, NoSpaceError):
            raise
        except SandyardError as error:
            raise UnsafeBundleError(f"The data from the sandbox was rejected. {error.message}") from error
        await _check_not_foreign(repository, commits.values(), {*own_refs, *refs.values()}, shared_prefixes)
        _move_pack(objects / "pack", repository.objects / "pack")
        await repository.set_refs({refs[name]: tip for name, tip in header.refs.items()})
        return {refs[name]: commits[tip] for name, tip in header.refs.items()}


def _check_file(path: Path, limit: int) -> None:
    if path.is_symlink() or not path.is_file():
        raise UnsafeBundleError("The data from the sandbox is not a file.")
    if path.stat().st_size > limit:
        raise TooMuchError(
            f"There are more than {limit >> 20} MiB of commits to transfer from the sandbox, which is the limit."
        )


def _parse_header(file: IO[bytes]) -> _Header:
    """Read the header and leave the file at the start of the pack. The file must be unbuffered, so that git continues there."""
    start = file.read(_MAX_HEADER_BYTES) or b""
    end = start.find(b"\n\n")
    if not start.startswith(_SIGNATURES):
        raise UnsafeBundleError("The data from the sandbox is not a Git bundle.")
    if end < 0:
        raise UnsafeBundleError("The Git bundle from the sandbox has an incomplete list of refs.")
    prerequisites: list[str] = []
    refs: dict[str, str] = {}
    for line in start[: end + 1].splitlines(keepends=True)[1:]:
        if line == b"@object-format=sha1\n":
            continue
        if len(line) > _MAX_LINE_BYTES:
            raise UnsafeBundleError("The Git bundle from the sandbox has a header line that is too long.")
        if match := _PREREQUISITE.fullmatch(line):
            prerequisites.append(match[1].decode())
        elif (match := _REF.fullmatch(line)) and match[2].decode(errors="replace") not in refs:
            refs[match[2].decode(errors="replace")] = match[1].decode()
        else:
            raise UnsafeBundleError("The Git bundle from the sandbox has an invalid header.")
    file.seek(end + 2)
    return _Header(tuple(dict.fromkeys(prerequisites)), refs)


def _check_refs(header: _Header, refs: Mapping[str, str]) -> None:
    if header.refs.keys() != refs.keys():
        raise UnsafeBundleError(
            f"The Git bundle from the sandbox should contain {', '.join(sorted(refs))} and nothing else; it contains "
            f"{clean_line(', '.join(sorted(header.refs)))[:200] or 'nothing'}."
        )


async def _index_pack(repository: BareRepository, file: IO[bytes], objects: Path, limit: int) -> None:
    ignored_defects = ",".join(f"{name}=ignore" for name in HARMLESS_DEFECTS)
    await repository.run(
        *("-c", "pack.threads=1", "-c", f"core.bigFileThreshold={_STREAM_ABOVE}"),
        "index-pack",
        "--stdin",
        "--fix-thin",
        f"--strict={ignored_defects}",
        f"--max-input-size={limit}",
        stdin=file,
        objects=objects,
        max_allocation=_MAX_ALLOCATION,
        memory=_MAX_MEMORY,
        timeout_s=TIMEOUT_S,
        limit=1 << 20,
    )


async def _check_connected(repository: BareRepository, header: _Header, objects: Path) -> dict[str, str]:
    """Check that every object between the new tips and the mirror's commits exists.

    Returns each tip with the commit that it is or that it tags.
    """
    tips = list(dict.fromkeys(header.refs.values()))
    peeled = await repository.run(
        "cat-file",
        "--batch-check=%(objectname) %(objecttype)",
        stdin="".join(f"{tip}^{{commit}}\n" for tip in tips).encode(),
        objects=objects,
        max_allocation=_MAX_ALLOCATION,
        timeout_s=TIMEOUT_S,
    )
    found = [line.partition(" ") for line in peeled.stdout.decode(errors="replace").splitlines()]
    if len(found) != len(tips) or any(kind != "commit" for _, _, kind in found):
        raise GitFailedError("One of its refs is not a commit.")
    stdin = "".join(f"{tip}\n" for tip in tips).encode()
    await repository.run(
        *("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"),
        stdin=stdin,
        objects=objects,
        max_allocation=_MAX_ALLOCATION,
        memory=_MAX_MEMORY,
        timeout_s=TIMEOUT_S,
    )
    return {tip: commit for tip, (commit, _, _) in zip(tips, found, strict=True)}


async def _check_not_foreign(
    repository: BareRepository, commits: Collection[str], own_refs: Collection[str], shared_prefixes: tuple[str, ...]
) -> None:
    """Check that none of the commits is in the mirror only for another sandbox.

    Must come after the check for missing objects, so that no commit that the bundle lacks can arrive in between. A bundle
    proves nothing, because it may lack a commit that the mirror has, or contain it as a delta of itself. A commit without a
    ref was imported before a crash, or was replaced since.
    """
    for commit in await repository.filter_known(list(dict.fromkeys(commits))):
        names = await repository.list_refs_containing(commit)
        if names and not any(name in own_refs or name.startswith(shared_prefixes) for name in names):
            raise UnsafeBundleError(FOREIGN_COMMIT)


def _move_pack(source: Path, packs: Path) -> None:
    """Move the index last: git does not see the pack without it."""
    packs.mkdir(parents=True, exist_ok=True)
    for suffix in (".pack", ".rev", ".idx"):
        for path in source.glob(f"*{suffix}"):
            if not (packs / path.name).exists():
                path.replace(packs / path.name)
