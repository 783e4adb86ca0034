"""Taking commits that came out of a sandbox: whatever it is, nothing unsound gets into a mirror.

The pack is indexed in a quarantine beside the mirror's objects, each object in it checked as git checks what is pushed to a server that
trusts nobody. Every object the new refs need must be there, and no commit may have more files than git can work with. Only then do the
pack and the refs become part of the mirror.
(`git fetch` of a bundle would not do: git 2.39 leaves the checks out there.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandyard.kit.errors import NoSpaceError, SandyardError
from sandyard.platform.domain.git.bare import Bare
from sandyard.platform.domain.git.errors import GitFailedError, GitTimeoutError, TooMuchError, UnsafeBundleError
from sandyard.platform.domain.git.faults import storable
from sandyard.platform.domain.git.hardened import HARMLESS
from sandyard.platform.domain.git.tree_paths import check_paths

_OURS = "refs/sandyard/"
_MEMORY = 200 << 20
"""Of git at once. A few bytes of deltas can unfold to as much as they like, and again for each delta upon them."""
_MEMORY_IN_ALL = 2 << 30
"""Of git that checks what has come: it needs some hundred bytes for each object."""
_STREAMED = "128m"
"""A larger file that is no delta is checked piece by piece, and needs no memory."""
_TIMEOUT_S = 120.0
_HEADER_LIMIT = 1 << 20
_LINE_LIMIT = 4 << 10
_SIGNATURES = (b"# v2 git bundle\n", b"# v3 git bundle\n")
_NEEDED = re.compile(rb"-([0-9a-f]{40})(?: .*)?\n")
_REF = re.compile(rb"([0-9a-f]{40}) (\S+)\n")


@dataclass(frozen=True, slots=True)
class _Header:
    needed: tuple[str, ...]
    refs: dict[str, str]


async def take(bare: Bare, path: Path, refs: Mapping[str, str], *, limit: int) -> dict[str, str]:
    """The commits of the bundle at `path`, its ref names translated by `refs`; the caller is in `writing`. What was taken: the ref in
    the mirror, and the commit it names there (of a tag, the commit that is tagged).

    Raises UnsafeBundleError, and TooMuchError for more than `limit` bytes; then the mirror is as it was. Idempotent.
    """
    if any(not name.startswith(_OURS) for name in refs.values()):
        raise ValueError("data from a sandbox may only be stored below refs/sandyard/")
    _check_file(path, limit)
    with path.open("rb", buffering=0) as file, bare.quarantine() as objects:
        header = _parse(file)
        _compare(header, refs)
        missing = set(header.needed) - set(await bare.known(header.needed))
        if missing:
            raise UnsafeBundleError(
                "The commits from the sandbox are based on commits that the platform has never seen."
            )
        try:
            await _index(bare, file, objects, limit)
            commits = await _connected(bare, header, objects)
            await check_paths(bare, tuple(commits), objects)
        except (GitTimeoutError, NoSpaceError):
            raise
        except SandyardError as fault:
            raise UnsafeBundleError(f"The data from the sandbox was rejected. {fault.message}") from fault
        _admit(objects / "pack", bare.objects / "pack")
        await bare.set_refs({refs[name]: tip for name, tip in header.refs.items()})
        return {refs[name]: commits[tip] for name, tip in header.refs.items()}


def _check_file(path: Path, limit: int) -> None:
    if path.is_symlink() or not path.is_file():
        raise UnsafeBundleError("The data from the sandbox is not a file.")
    if path.stat().st_size > limit:
        raise TooMuchError(
            f"There are more than {limit >> 20} MiB of commits to transfer from the sandbox, which is the limit."
        )


def _parse(file: IO[bytes]) -> _Header:
    """Reads the header, and leaves the file where the pack begins. The file is unbuffered, so that git reads on from there."""
    start = file.read(_HEADER_LIMIT) or b""
    end = start.find(b"\n\n")
    if not start.startswith(_SIGNATURES):
        raise UnsafeBundleError("The data from the sandbox is not a Git bundle.")
    if end < 0:
        raise UnsafeBundleError("The Git bundle from the sandbox has an incomplete list of refs.")
    needed: list[str] = []
    refs: dict[str, str] = {}
    for line in start[: end + 1].splitlines(keepends=True)[1:]:
        if line == b"@object-format=sha1\n":
            continue
        if len(line) > _LINE_LIMIT:
            raise UnsafeBundleError("The Git bundle from the sandbox has a header line that is too long.")
        if match := _NEEDED.fullmatch(line):
            needed.append(match[1].decode())
        elif (match := _REF.fullmatch(line)) and match[2].decode(errors="replace") not in refs:
            refs[match[2].decode(errors="replace")] = match[1].decode()
        else:
            raise UnsafeBundleError("The Git bundle from the sandbox has an invalid header.")
    file.seek(end + 2)
    return _Header(tuple(dict.fromkeys(needed)), refs)


def _compare(header: _Header, refs: Mapping[str, str]) -> None:
    if header.refs.keys() != refs.keys():
        raise UnsafeBundleError(
            f"The Git bundle from the sandbox should contain {', '.join(sorted(refs))} and nothing else; it contains "
            f"{storable(', '.join(sorted(header.refs)))[:200] or 'nothing'}."
        )


async def _index(bare: Bare, file: IO[bytes], objects: Path, limit: int) -> None:
    forgiven = ",".join(f"{name}=ignore" for name in HARMLESS)
    await bare.run(
        *("-c", "pack.threads=1", "-c", f"core.bigFileThreshold={_STREAMED}"),
        "index-pack",
        "--stdin",
        "--fix-thin",
        f"--strict={forgiven}",
        f"--max-input-size={limit}",
        stdin=file,
        objects=objects,
        largest=_MEMORY,
        memory=_MEMORY_IN_ALL,
        timeout_s=_TIMEOUT_S,
        limit=1 << 20,
    )


async def _connected(bare: Bare, header: _Header, objects: Path) -> dict[str, str]:
    """Every object between the new tips and what the mirror has is there. Each tip, and the commit that it is or that it tags."""
    tips = list(dict.fromkeys(header.refs.values()))
    peeled = await bare.run(
        "cat-file",
        "--batch-check=%(objectname) %(objecttype)",
        stdin="".join(f"{tip}^{{commit}}\n" for tip in tips).encode(),
        objects=objects,
        largest=_MEMORY,
        timeout_s=_TIMEOUT_S,
    )
    found = [line.partition(" ") for line in peeled.stdout.decode(errors="replace").splitlines()]
    if len(found) != len(tips) or any(kind != "commit" for _, _, kind in found):
        raise GitFailedError("One of its refs is not a commit.")
    stdin = "".join(f"{tip}\n" for tip in tips).encode()
    await bare.run(
        *("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"),
        stdin=stdin,
        objects=objects,
        largest=_MEMORY,
        memory=_MEMORY_IN_ALL,
        timeout_s=_TIMEOUT_S,
    )
    return {tip: commit for tip, (commit, _, _) in zip(tips, found, strict=True)}


def _admit(found: Path, packs: Path) -> None:
    """The index last: without it, git does not see the pack."""
    packs.mkdir(parents=True, exist_ok=True)
    for suffix in (".pack", ".rev", ".idx"):
        for path in found.glob(f"*{suffix}"):
            if not (packs / path.name).exists():
                path.replace(packs / path.name)
