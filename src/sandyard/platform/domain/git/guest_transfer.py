"""Transfer commits into and out of a sandbox, as bundle files."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.kit.ids import random_id
from sandyard.platform.domain.git.errors import GitFailedError, TooMuchError, UnsafeBundleError
from sandyard.platform.domain.git.guest_run import LIMIT, Runner, script
from sandyard.platform.domain.git.model import Bundle, Identity

SENT = "refs/sandyard/sent"
"""The name of the requested ref in every bundle that comes from a sandbox."""
TRANSFER_S = 600.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What a sandbox sent: its newest commit, and the name of that commit in the bundle, if there is a bundle."""

    commit: str
    ref: str = SENT


_CHUNK = 1 << 20
_SEND_FOLDER = re.compile(r"/tmp/\.sandyard-send-[A-Za-z0-9]{16}")  # noqa: S108 - in the sandbox
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FOUND, _OTHER, _NOT_EMPTY, _NO_REF, _TOO_MUCH = "found", 92, 93, 92, 93

# A checkout is complete when sandyard-begun is gone. An incomplete one holds no work and may be deleted.
_BEGIN = script(
    f"""mkdir -p -- "$1" && cd -- "$1" || exit 1
if [ -e .git/sandyard-begun ] || {{ [ -d .git ] && [ -z "$(ls -A .git)" ]; }}; then find . -mindepth 1 -delete || exit 1; fi
if [ -e .git ]; then
  marked=$(g config --local sandyard.checkout)
  [ -n "$marked" ] || exit {_OTHER}
  [ "$marked" = "$2" ] || [ "$(g symbolic-ref -q --short HEAD)" = "$2" ] || exit {_OTHER}
  echo {_FOUND}
  exit 0
fi
[ -z "$(ls -A)" ] || exit {_NOT_EMPTY}
""",
    inside=False,
)

# Uses `bundle unbundle` instead of `fetch`, or neither if the pack comes with its index: what our own mirror has
# created need not be checked again.
_CHECKOUT = script(
    """bundle=$2 commit=$3 base=$4 branch=$5 name=$6 email=$7 origin=$8 shallow=$9
cd -- "$1" || exit 1
shift 9
index=$1 pack=$2
shift 2
trap 'rm -f -- "$bundle" "$index"' EXIT
mkdir -p .git/hooks .git/info && : >.git/sandyard-begun || exit 1
format=sha1
[ ${#commit} -ne 64 ] || format=sha256
g init -q --template= --object-format=$format || exit 1
[ -z "$shallow" ] || printf '%s\\n' "$shallow" >.git/shallow || exit 1
if [ -n "$index" ]; then
  chmod 444 "$index" "$bundle" || exit 1
  mv -- "$bundle" ".git/objects/pack/pack-$pack.pack" && mv -- "$index" ".git/objects/pack/pack-$pack.idx" || exit 1
else
  g bundle unbundle "$bundle" >/dev/null || exit 1
fi
rm -f -- "$bundle"
declare -A there
while read -r id kind _; do [ "$kind" != commit ] || there[$id]=1; done < <(
  for id in "$commit" "${@}"; do printf '%s\\n' "$id"; done | g cat-file --batch-check 2>/dev/null)
[ -n "${there[$commit]:-}" ] || { echo "The bundle does not have the commit $commit." >&2; exit 1; }
known=$base at=$commit upstream=
while [ $# -gt 1 ]; do
  if [ -n "${there[$2]:-}" ]; then
    g update-ref "refs/remotes/origin/$1" "$2" || exit 1
    [ "$1" != "$branch" ] || upstream=1
  fi
  [ "$1" != "$base" ] || known=
  shift 2
done
[ -z "$known" ] || g update-ref "refs/remotes/origin/$base" "$at" || exit 1
g symbolic-ref refs/remotes/origin/HEAD "refs/remotes/origin/$base" || exit 1
g config user.name "$name" && g config user.email "$email" || exit 1
if [ -n "$origin" ]; then
  g config remote.origin.url "$origin" && g config remote.origin.fetch '+refs/heads/*:refs/remotes/origin/*' || exit 1
fi
g -c checkout.workers=0 checkout -q -f --no-track -B "$branch" "$commit" -- || exit 1
if [ -n "$upstream" ]; then
  g config "branch.$branch.remote" origin && g config "branch.$branch.merge" "refs/heads/$branch" || exit 1
fi
g config sandyard.checkout "$branch" && rm .git/sandyard-begun
""",
    inside=False,
)

ADD_SHALLOW = """if [ -n "$shallow" ]; then
  boundary=$(g rev-parse --git-path shallow)
  printf '%s\\n' "$shallow" | g cat-file --batch-check | while read -r id kind _; do
    [ "$kind" != missing ] || printf '%s\\n' "$id"
  done >>"$boundary" || exit 1
fi
"""
"""Adds the shallow boundary of a bundle, as far as the checkout lacks those commits."""

_RECEIVE = script(f"""bundle=$1 shallow=$2
shift 2
trap 'rm -f -- "$bundle"' EXIT
{ADD_SHALLOW}heads=$(g bundle unbundle "$bundle") || exit 1
declare -A at
while read -r id name; do [ -z "$id" ] || at[$name]=$id; done <<<"$heads"
updates=()
while [ $# -gt 1 ]; do
  [ -n "${{at[$1]:-}}" ] || {{ echo "The bundle does not have $1." >&2; exit 1; }}
  updates+=("update $2" "${{at[$1]}}" "")
  shift 2
done
printf '%s\\0' "${{updates[@]}}" | g update-ref --no-deref -z --stdin
""")

# The bundle is created in a separate repository that borrows the checkout's objects: the sent commit has a fixed name
# and cannot change meanwhile, and no ref of the checkout is touched.
_SEND = script(f"""ref=$1 limit=$2
shift 2
object=$(g rev-parse -q --verify --end-of-options "$ref^{{object}}") || exit {_NO_REF}
commit=$(g rev-parse -q --verify --end-of-options "$ref^{{commit}}") || exit {_NO_REF}
not=()
if [ $# -gt 0 ]; then
  while read -r id kind _; do [ "$kind" != commit ] || not+=("^$id"); done < <(
    printf '%s\\n' "$@" | g cat-file --batch-check)
fi
if [ "$object" = "$commit" ] && [ -z "$(g rev-list -n 1 "$commit" "${{not[@]}}" --)" ]; then
  printf '%s 0 -\\n' "$commit"
  exit 0
fi
t=$(mktemp -d /tmp/.sandyard-send-XXXXXXXXXXXXXXXX) || exit 1
trap 'rm -rf -- "$t"' EXIT
mkdir -p "$t/git/objects/info" "$t/git/refs" || exit 1
objects=$(g rev-parse --git-path objects)
(cd -- "$objects" && pwd -P) >"$t/git/objects/info/alternates" || exit 1
boundary=$(g rev-parse --git-path shallow)
[ ! -f "$boundary" ] || cp -- "$boundary" "$t/git/shallow" || exit 1
printf 'ref: refs/heads/none\\n' >"$t/git/HEAD"
printf '%s {SENT}\\n' "$object" >"$t/git/packed-refs"
version=0 extension=
[ ${{#commit}} -ne 64 ] || {{ version=1; extension='[extensions] objectformat = sha256'; }}
printf '[core] repositoryformatversion = %s\\n[core] bare = true\\n%s\\n' $version "$extension" >"$t/git/config" || exit 1
git --git-dir="$t/git" -c safe.directory='*' bundle create -q - {SENT} "${{not[@]}}" | head -c $((limit + 1)) >"$t/bundle"
codes=("${{PIPESTATUS[@]}}")
size=$(wc -c <"$t/bundle")
[ "$size" -le "$limit" ] || exit {_TOO_MUCH}
[ "${{codes[0]}}" -eq 0 ] && [ "${{codes[1]}}" -eq 0 ] || exit 1
rm -rf -- "$t/git"
trap - EXIT
printf '%s %s %s\\n' "$commit" "$size" "$t"
""")


async def checkout(
    runner: Runner,
    bundle: Bundle,
    *,
    commit: str,
    base_branch: str,
    branch: str,
    identity: Identity,
    origin: str,
    tracked: Mapping[str, str],
) -> None:
    began = await runner.script(_BEGIN, branch, ok=(0, _OTHER, _NOT_EMPTY))
    if began.exit_code == _OTHER:
        raise GitFailedError(f"{runner.folder} already contains another repository, or another branch of this one.")
    if began.exit_code == _NOT_EMPTY:
        raise GitFailedError(
            f"{runner.folder} in the sandbox is not empty and is not a checkout. Empty it, then try again."
        )
    if began.stdout.strip() == _FOUND.encode():
        return
    index = ("", "")
    if bundle.index is not None:
        index = (await upload(runner, bundle.index.path), bundle.index.pack)
    path = await upload(runner, bundle.path, 0 if bundle.index is None else bundle.index.offset)
    pairs = [word for pair in tracked.items() for word in pair]
    shallow = "\n".join(bundle.shallow)
    await runner.script(
        _CHECKOUT,
        *(path, commit, base_branch, branch, identity.name, identity.email, origin, shallow, *index, *pairs),
        timeout_s=TRANSFER_S,
    )


async def receive(runner: Runner, bundle: Bundle, refs: Mapping[str, str]) -> None:
    path = await upload(runner, bundle.path)
    pairs = [word for pair in refs.items() for word in pair]
    await runner.script(_RECEIVE, path, "\n".join(bundle.shallow), *pairs, timeout_s=TRANSFER_S)


async def send(runner: Runner, into: Path, *, ref: str, have: Sequence[str], limit: int) -> Sent:
    known = [commit for commit in dict.fromkeys(have) if _OID.fullmatch(commit)]
    ran = await runner.script(
        _SEND, ref, str(limit), *known, ok=(0, _NO_REF, _TOO_MUCH), timeout_s=TRANSFER_S, limit=LIMIT
    )
    if ran.exit_code == _NO_REF:
        raise GitFailedError(f"The checkout in the sandbox has no commit {ref!r}.")
    if ran.exit_code == _TOO_MUCH:
        raise _too_much_error(limit)
    said = ran.stdout.decode("ascii", "replace").split()
    if len(said) != 3 or not _OID.fullmatch(said[0]):
        raise UnsafeBundleError
    commit, _, folder = said
    if folder == "-":
        return Sent(commit)
    if not _SEND_FOLDER.fullmatch(folder):
        raise UnsafeBundleError
    try:
        await _download(runner, f"{folder}/bundle", into, limit)
    finally:
        await _remove_in_sandbox(runner, folder)
    return Sent(commit)


async def upload(runner: Runner, file: str, offset: int = 0) -> str:
    """Upload the file from that offset on and return its path in the sandbox, which is unguessable so that it cannot be
    occupied."""
    path = f"/tmp/.sandyard-bundle-{random_id()}"  # noqa: S108 - in the sandbox
    try:
        await runner.engine.files.write(runner.engine_id, path, _read_chunks(Path(file), offset))
    except BaseException:
        await _remove_in_sandbox(runner, path)
        raise
    return path


async def _download(runner: Runner, path: str, into: Path, limit: int) -> None:
    """Download at most `limit` bytes, whatever size the sandbox reports. Leaves no file if it fails."""
    _, chunks = await runner.engine.files.read(runner.engine_id, path)
    taken = 0
    try:
        file = await asyncio.to_thread(into.open, "wb")
        try:
            async for chunk in chunks:
                taken += len(chunk)
                if taken > limit:
                    raise _too_much_error(limit)
                await asyncio.to_thread(file.write, chunk)
        finally:
            await asyncio.to_thread(file.close)
    except BaseException:
        await asyncio.to_thread(into.unlink, missing_ok=True)
        raise
    finally:
        await chunks.aclose()  # type: ignore[attr-defined] # it is a generator


async def _remove_in_sandbox(runner: Runner, path: str) -> None:
    """Remove a file in the sandbox, even if the caller is cancelled. If the sandbox is gone, so is the file."""
    with contextlib.suppress(Exception):
        await asyncio.shield(asyncio.ensure_future(runner.engine.files.remove(runner.engine_id, path)))


async def _read_chunks(path: Path, offset: int) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        file.seek(offset)
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
    finally:
        await asyncio.to_thread(file.close)


def _too_much_error(limit: int) -> TooMuchError:
    return TooMuchError(
        f"There is more than {limit / (1 << 20):g} MiB to transfer from the sandbox. Check the changes for large files, and "
        "ignore or remove them."
    )
