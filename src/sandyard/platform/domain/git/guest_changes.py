"""Stage, discard, commit, branch and tag in a checkout."""

from __future__ import annotations

from collections.abc import Sequence

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.git import messages
from sandyard.platform.domain.git.errors import GitFailedError, NothingToCommitError
from sandyard.platform.domain.git.guest_run import Runner, script, signed, words
from sandyard.platform.domain.git.model import CommitDraft, Identity
from sandyard.platform.domain.git.raw import parsed, shown

COMMIT_S = 300.0
"""Time limit of a commit, which includes the hooks of the checkout."""
DISCARDED = 10_000
"""Maximum number of discarded paths to return."""
_MAX_PATHS_BYTES = 1 << 20
_MAX_MESSAGE_BYTES = 64 << 10
_NOTHING, _MARKERS, _REFUSED, _EXISTS, _NO_START = 92, 93, 94, 92, 93

_STAGE = script('g add -A -- "$@"')
_UNSTAGE = script('g reset -q -- "$@"')
_DISCARD = script("""everything=$1
shift
g status --porcelain=v1 -z --untracked-files=all --no-renames --ignore-submodules=dirty -- "$@"
if [ -n "$everything" ]; then g reset -q --hard && g clean -fdq; exit; fi
g reset -q -- "$@" && g clean -fdq -- "$@" || exit 1
g ls-files -z --modified --deleted -- "$@" | g checkout-index -f -u -z --stdin
""")
# Hooks write to a file: with a pipe, git would wait for background processes that a hook leaves running.
_COMMIT = script(f"""how=$1 message=$2
shift 2
left=$(g diff --name-only --diff-filter=U -z | xargs -0 -r grep -lE '^(<<<<<<<|>>>>>>>) ' -- 2>/dev/null)
if [ -n "$left" ] && [ "$how" != staged ]; then printf '%s\\n' "$left" >&2; exit {_MARKERS}; fi
case $how in everything) g add -A || exit 1 ;; paths) g add -A -- "$@" || exit 1 ;; esac
if [ ! -e "$d/MERGE_HEAD" ]; then
  if g rev-parse -q --verify HEAD >/dev/null; then
    g diff --cached --quiet --no-ext-diff --ignore-submodules=none HEAD -- "$@" && exit {_NOTHING}
  elif [ -z "$(g ls-files -- "$@" | head -c 1)" ]; then exit {_NOTHING}; fi
fi
only=()
[ "$how" != paths ] || only=(--only -- "$@")
said=$(mktemp) || exit 1
trap 'rm -f -- "$said"' EXIT
hooked commit -q --no-gpg-sign --cleanup=whitespace --message="$message" "${{only[@]}}" >"$said" 2>&1
if [ $? -ne 0 ]; then tail -c 8000 -- "$said" >&2; exit {_REFUSED}; fi
g rev-parse HEAD
""")
_BRANCH = script(f"""name=$1 start=$2
g check-ref-format --branch "$name" >/dev/null 2>&1 || {{ echo "this is no name for a branch" >&2; exit 1; }}
if [ "$(g symbolic-ref -q --short HEAD)" = "$name" ]; then
  [ -n "$start" ] || exit 0
  [ "$(g rev-parse -q --verify --end-of-options "$start^{{commit}}")" != "$(g rev-parse -q --verify HEAD)" ] || exit 0
fi
! g show-ref -q --verify "refs/heads/$name" || exit {_EXISTS}
if [ -n "$start" ]; then
  start=$(g rev-parse -q --verify --end-of-options "$start^{{commit}}") ||
    start=$(g rev-parse -q --verify --end-of-options "refs/remotes/origin/$2^{{commit}}") || exit {_NO_START}
  g checkout -q --no-track -b "$name" "$start" --
else g checkout -q -b "$name"; fi
""")
_TAG = script(f"""name=$1 message=$2
if g show-ref -q --verify "refs/tags/$name"; then
  [ "$(g rev-parse -q --verify "refs/tags/$name^{{commit}}")" = "$(g rev-parse 'HEAD^{{commit}}')" ] || exit {_EXISTS}
elif [ -n "$message" ]; then g tag -a --no-sign --cleanup=whitespace --message="$message" -- "$name" HEAD || exit 1
else g tag --no-sign -- "$name" HEAD || exit 1; fi
g rev-parse 'HEAD^{{commit}}'
""")


async def stage(runner: Runner, paths: Sequence[str], *, unstage: bool) -> None:
    _check_paths(paths)
    if paths:
        await runner.script(_UNSTAGE if unstage else _STAGE, *paths)


async def discard(runner: Runner, paths: Sequence[str], *, everything: bool) -> list[str]:
    _check_paths(paths)
    if not paths and not everything:
        return []
    ran = await runner.script(_DISCARD, "yes" if everything else "", *([] if everything else paths))
    return await parsed(ran.stdout, lambda output: [shown(entry[3:]) for entry in output.split(b"\0", DISCARDED)[:-1]])


async def commit(runner: Runner, draft: CommitDraft) -> str:
    _check_paths(draft.paths)
    message = messages.with_trailers(draft.message, draft.co_authors)
    if not message.strip():
        raise InvalidInputError("A commit needs a message.")
    if len(message.encode()) > _MAX_MESSAGE_BYTES:
        raise InvalidInputError(f"The commit message is longer than {_MAX_MESSAGE_BYTES >> 10} KiB.")
    how = "paths" if draft.paths else "everything" if draft.everything else "staged"
    ran = await runner.script(
        _COMMIT,
        *(how, message, *draft.paths),
        envs=signed(draft.author, draft.committer),
        ok=(0, _NOTHING, _MARKERS, _REFUSED),
        timeout_s=COMMIT_S,
    )
    if ran.exit_code == _NOTHING:
        raise NothingToCommitError
    if ran.exit_code == _MARKERS:
        raise GitFailedError(f"These files still have conflict markers. Resolve them first: {words(ran.stderr)}")
    if ran.exit_code == _REFUSED:
        raise GitFailedError(f"The commit was rejected in the sandbox. It said: {words(ran.stderr)}")
    return ran.stdout.decode("ascii", "replace").strip()


async def create_branch(runner: Runner, name: str, start: str | None) -> None:
    ran = await runner.script(_BRANCH, name, start or "", ok=(0, _EXISTS, _NO_START))
    if ran.exit_code == _EXISTS:
        raise GitFailedError(f"The checkout already has a branch {name!r}. Choose another name.")
    if ran.exit_code == _NO_START:
        raise GitFailedError(f"The checkout has no commit {start!r} to start a branch from.")


async def tag(runner: Runner, name: str, message: str | None, identity: Identity) -> str:
    ran = await runner.script(_TAG, name, message or "", envs=signed(identity), ok=(0, _EXISTS))
    if ran.exit_code == _EXISTS:
        raise GitFailedError(f"The checkout already has a tag {name!r}. Choose another name.")
    return ran.stdout.decode("ascii", "replace").strip()


def _check_paths(paths: Sequence[str]) -> None:
    if any(not path for path in paths):
        raise InvalidInputError("A path must not be empty.")
    if sum(len(path.encode(errors="surrogateescape")) + 9 for path in paths) > _MAX_PATHS_BYTES:
        raise InvalidInputError("Too many paths for one request. Name their folders instead.")
