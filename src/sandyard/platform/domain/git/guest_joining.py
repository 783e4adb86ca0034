"""Merge and rebase in a checkout, with conflicts reported per file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandyard.platform.domain.git.errors import ConflictsError, GitFailedError
from sandyard.platform.domain.git.guest_run import Runner, script, signed, words
from sandyard.platform.domain.git.model import Conflict, Identity

_MAX_CONFLICTS, _MAX_MESSAGE_BYTES = 1000, 256 << 10
"""Maximum number of conflicts to report, and maximum size of git's messages about them."""
JOIN_S = 300.0
_UNDER_WAY, _CONFLICTS, _STUCK = 92, 93, 94
_BUSY = f"""busy() {{ [ -e "$d/MERGE_HEAD" ] || [ -d "$d/rebase-merge" ] || [ -d "$d/rebase-apply" ]; }}
! busy || exit {_UNDER_WAY}
t=$(mktemp -d) || exit 1
trap 'rm -rf -- "$t"' EXIT
"""
# The work tree is restored before anything is printed, because the reader may stop reading.
_MERGE = script(f"""leave=$1 other=$2 message=$3
{_BUSY}
other=$(g rev-parse -q --verify --end-of-options "$other^{{commit}}") || {{ echo "there is no commit $2" >&2; exit 1; }}
g -c merge.verifySignatures=false merge --ff --no-edit --no-verify --no-gpg-sign --no-autostash --no-stat --no-squash \\
  -m "$message" "$other" >"$t/said" 2>&1
code=$?
[ $code -ne 0 ] || exit 0
g ls-files -u -z >"$t/files"
if [ ! -s "$t/files" ]; then
  [ ! -e "$d/MERGE_HEAD" ] || g merge --abort 2>/dev/null || g reset -q --merge
  cat "$t/said" >&2
  exit 1
fi
if [ -z "$leave" ]; then g merge --abort 2>>"$t/said" || {{ cat "$t/said" >&2; exit {_STUCK}; }}; fi
tr -d '\\000' <"$t/said"
printf '\\0'
cat "$t/files"
exit {_CONFLICTS}
""")
_REBASE = script(f"""onto=$1
{_BUSY}
onto=$(g rev-parse -q --verify --end-of-options "$onto^{{commit}}") || {{ echo "there is no commit $1" >&2; exit 1; }}
g -c rebase.updateRefs=false -c rebase.autoSquash=false -c rebase.rebaseMerges=false -c rebase.missingCommitsCheck=ignore \\
  rebase -q --no-fork-point --no-autostash --no-gpg-sign --no-verify --no-stat "$onto" >"$t/said" 2>&1
code=$?
[ $code -ne 0 ] || exit 0
g ls-files -u -z >"$t/files"
if busy; then g rebase --abort 2>>"$t/said" || {{ cat "$t/said" >&2; exit {_STUCK}; }}; fi
if [ ! -s "$t/files" ]; then cat "$t/said" >&2; exit 1; fi
tr -d '\\000' <"$t/said"
printf '\\0'
cat "$t/files"
exit {_CONFLICTS}
""")
_ABORT = script("""if [ -d "$d/rebase-merge" ]; then g rebase --abort || exit 1
elif [ -f "$d/rebase-apply/applying" ]; then g am --abort || exit 1
elif [ -d "$d/rebase-apply" ]; then g rebase --abort || exit 1
elif [ -e "$d/MERGE_HEAD" ]; then g merge --abort || exit 1
elif [ -e "$d/CHERRY_PICK_HEAD" ]; then g cherry-pick --abort || exit 1
elif [ -e "$d/REVERT_HEAD" ]; then g revert --abort || exit 1
else exit 0; fi
echo ended
""")
_CONFLICT_LINE = re.compile(r"CONFLICT \(([^)]{1,60})\): (.{0,4096})")
_MAX_SPACES = 30
"""Maximum number of spaces in a path at the end of one of git's sentences."""
_CONFLICT_BY_STAGES = {
    "123": ("content", "Both sides changed it."),
    "23": ("add/add", "Both sides added it with different content."),
    "12": ("modify/delete", "Our side changed it, their side deleted it."),
    "13": ("modify/delete", "Our side deleted it, their side changed it."),
    "1": ("rename/rename", "Both sides renamed it differently."),
    "2": ("rename/rename", "Only our side has this name."),
    "3": ("rename/rename", "Only their side has this name."),
}


async def merge(
    runner: Runner, other: str, *, message: str, leave_conflicts: bool, identity: Identity
) -> list[Conflict]:
    ran = await runner.script(
        _MERGE,
        *("yes" if leave_conflicts else "", other, message),
        envs=signed(identity),
        ok=(0, 1, _UNDER_WAY, _CONFLICTS, _STUCK),
        timeout_s=JOIN_S,
    )
    conflicts = _interpret_result(ran.exit_code, ran.stdout, ran.stderr, "merge")
    if conflicts and not leave_conflicts:
        raise ConflictsError(conflicts)
    return conflicts


async def rebase(runner: Runner, onto: str) -> None:
    ran = await runner.script(_REBASE, onto, ok=(0, 1, _UNDER_WAY, _CONFLICTS, _STUCK), timeout_s=JOIN_S)
    conflicts = _interpret_result(ran.exit_code, ran.stdout, ran.stderr, "rebase")
    if conflicts:
        raise ConflictsError(conflicts, ("merge", "agent", "give_up"))


async def abort(runner: Runner) -> bool:
    return b"ended" in (await runner.script(_ABORT)).stdout


def _interpret_result(code: int, stdout: bytes, stderr: str, what: str) -> list[Conflict]:
    said = words(stderr)
    if code == _UNDER_WAY:
        raise GitFailedError("A merge or rebase is in progress in the sandbox. Finish or abort it first.")
    if code == _STUCK:
        raise GitFailedError(
            f"There were conflicts, and the {what} could not be undone. Check the sandbox. It said: {said}"
        )
    if code == 1:
        changed = "unstaged changes" in said or "uncommitted changes" in said or "local changes" in said
        if changed or "untracked working tree files" in said:
            raise GitFailedError(
                f"The {what} would overwrite uncommitted changes in the sandbox. Commit or discard them first. It said: {said}"
            )
        raise GitFailedError(f"Git in the sandbox could not {what}. It said: {said}")
    return parse_conflicts(stdout) if code == _CONFLICTS else []


def _candidate_paths(sentence: str) -> Iterator[str]:
    """Yield everything in the sentence that may be a path: each word, and each ending, because paths may contain spaces."""
    yield from re.split(r"[\s,;:]+", sentence.rstrip("."))
    end = len(sentence)
    for _ in range(_MAX_SPACES):
        end = sentence.rfind(" ", 0, end)
        if end < 0:
            return
        yield sentence[end + 1 :]


def parse_conflicts(output: bytes) -> list[Conflict]:
    """Parse git's messages, a NUL byte, and the unmerged index entries."""
    said, _, listed = output.partition(b"\0")
    lines = _CONFLICT_LINE.findall(said[:_MAX_MESSAGE_BYTES].decode(errors="replace"))[:_MAX_CONFLICTS]
    stages: dict[str, str] = {}
    gitlinks: set[str] = set()
    for entry in listed.split(b"\0", 3 * _MAX_CONFLICTS)[: 3 * _MAX_CONFLICTS]:
        if not entry:
            continue
        about, _, name = entry.partition(b"\t")
        path = name.decode(errors="replace")
        mode, _, stage = about.decode("ascii", "replace").partition(" ")
        stages[path] = stages.get(path, "") + stage[-1:]
        if mode == "160000":
            gitlinks.add(path)
    said_of: dict[str, tuple[str, str]] = {}
    for named, sentence in lines:
        for path in _candidate_paths(sentence):
            if path in stages:
                said_of.setdefault(path, (named, sentence))
    conflicts = []
    for path, found in stages.items():
        kind, detail = _CONFLICT_BY_STAGES.get(found, ("content", ""))
        kind = "submodule" if path in gitlinks else kind
        kind, detail = said_of.get(path, (kind, detail))
        conflicts.append(Conflict(path, kind, detail))
    return conflicts
