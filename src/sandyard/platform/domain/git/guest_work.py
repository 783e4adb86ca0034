"""Store a whole work tree as one commit, and restore it.

The commit has the shape of a git-stash commit: its tree has every file, its first parent is HEAD and its second parent
is a commit of the index.
"""

from __future__ import annotations

import re

from sandyard.platform.domain.git.errors import GitFailedError, GuestGitError
from sandyard.platform.domain.git.guest_run import Runner, script, signed
from sandyard.platform.domain.git.model import Identity, Undone, WorkTree
from sandyard.platform.domain.git.raw import parsed, shown

LARGEST_MIB = 100
"""Larger untracked files are not saved; no forge accepts them either."""
SKIPPED = 1000
"""Maximum number of skipped files to report."""
NAMED = 20
"""Maximum number of reverted files to report."""
WORK_S = 300.0
_NOT_A_WORK_TREE = 92
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PLATFORM = Identity("Sandyard", "sandyard@localhost")
# a fixed date makes the same work tree the same commit, so that it is sent only once
_SIGNED = {
    **signed(_PLATFORM),
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}

# Works on a copy of the index, which has the dates and sizes of all files, so that only changed files are read again.
_STORE_WORK_TREE = f"""t=$(mktemp -d) || exit 1
trap 'rm -rf -- "$t"' EXIT
branch=$(g symbolic-ref -q --short HEAD) || branch=
unborn=
head=$(g rev-parse -q --verify 'HEAD^{{commit}}') || {{
  unborn=1
  head=$(g commit-tree -m 'sandyard: no commit yet' "$(g hash-object -w -t tree /dev/null)") || exit 1
}}
index=$(g rev-parse --git-path index)
[ ! -f "$index" ] || cp -- "$index" "$t/index" || exit 1
export GIT_INDEX_FILE=$t/index
staged=$(g write-tree 2>/dev/null) || staged=$(g rev-parse "$head^{{tree}}") || exit 1
skipped=$t/skipped
: >"$skipped"
g ls-files -z --others --exclude-standard | sed -z 's,^,./,' |
  xargs -0 -r sh -c 'find "$@" -maxdepth 0 -type f -size +{LARGEST_MIB * 1024}k -print0' sandyard >"$t/large" 2>/dev/null
not=()
while IFS= read -r -d '' path; do
  not+=(":(exclude,top,literal)${{path#./}}")
  printf '%s\\0' "${{path#./}}" >>"$skipped"
done <"$t/large"
if [ ${{#not[@]}} -eq 0 ]; then g add -A --ignore-errors 2>"$t/said"
else patterned add -A --ignore-errors -- . "${{not[@]}}" 2>"$t/said"; fi
if [ $? -ne 0 ]; then
  ! grep -qE 'No space left|Disk quota' "$t/said" || {{ cat "$t/said" >&2; exit 1; }}
  g ls-files -z --others --modified --exclude-standard >"$t/left"
  while IFS= read -r -d '' path; do
    [ ! -e "$path" ] && [ ! -L "$path" ] || printf '%s\\0' "$path" >>"$skipped"
  done <"$t/left"
fi
tree=$(g write-tree) || {{ cat "$t/said" >&2; exit 1; }}
printf -v message 'sandyard: work tree\\n\\nbranch: %s\\nunborn: %s\\n' "$branch" "$unborn"
at=$(g commit-tree -p "$head" -m 'sandyard: index' "$staged") || exit 1
commit=$(g commit-tree -p "$head" -p "$at" -m "$message" "$tree") || exit 1
"""
_WORK_TREE = script(f"""{_STORE_WORK_TREE}
changed=$(g diff-tree -r -z --name-only --no-renames "$head" "$commit" | tr -cd '\\000' | wc -c)
g diff-tree -r -z --no-renames --diff-filter=AM "$head" "$commit" | sed -nz '/^:[0-7]* 160000 /{{n;p}}' >>"$skipped"
printf '%s\\0%s\\0%s\\0%s\\0' "$commit" "$head" "$branch" "$((changed))"
cat "$skipped"
""")

_READ_STORED = f"""kind=$(g log -1 --format='%P%n%B' --end-of-options "$1" -- 2>/dev/null) || exit {_NOT_A_WORK_TREE}
{{ read -r head index more; read -r first; }} <<<"$kind"
[ "$first" = 'sandyard: work tree' ] && [ -n "$index" ] && [ -z "$more" ] || exit {_NOT_A_WORK_TREE}
"""
_RESTORE = script(f"""commit=$1
{_READ_STORED}
branch= unborn=
while read -r name value; do
  case $name in branch:) branch=$value ;; unborn:) unborn=$value ;; esac
done <<<"$kind"
if [ -e "$d/rebase-merge" ] || [ -e "$d/rebase-apply" ]; then g rebase --quit 2>/dev/null || g am --quit 2>/dev/null; fi
rm -f -- "$d/MERGE_HEAD" "$d/MERGE_MSG" "$d/MERGE_MODE" "$d/CHERRY_PICK_HEAD" "$d/REVERT_HEAD"
g -c checkout.workers=0 read-tree --reset -u "$commit" && g clean -ffdq || exit 1
g read-tree -m "$commit" "$index" || exit 1
if [ -n "$unborn" ]; then g symbolic-ref HEAD "refs/heads/$branch" && g update-ref -d "refs/heads/$branch" || exit 1
elif [ -n "$branch" ]; then
  g update-ref -m 'sandyard: restored' "refs/heads/$branch" "$head" && g symbolic-ref HEAD "refs/heads/$branch" || exit 1
else g update-ref --no-deref -m 'sandyard: restored' HEAD "$head" || exit 1; fi
g update-index -q --refresh
exit 0
""")

# Files that were ignored before do not count as the program's, even if it has changed the ignore rules or added files
# to the index since: the earlier rules are evaluated in a folder that contains nothing else. Read-only folders are made
# writable, because some tools create their caches read-only.
_UNDO = script(f"""before=$1
{_READ_STORED}
was_head=$head was_index=$index
{_STORE_WORK_TREE}
unset GIT_INDEX_FILE
if [ "$head" != "$was_head" ]; then printf '%s\\0' "$commit" 0 ''; exit 0; fi
g diff-tree -r -z --no-renames --diff-filter=A --name-only "$before" "$commit" >"$t/added" || exit 1
g diff-tree -r -z --no-renames --diff-filter=a --name-only "$before" "$commit" >"$t/changed" || exit 1
again=
! grep -qzE '(^|/)\\.gitignore$' "$t/added" "$t/changed" || again=1
GIT_INDEX_FILE=$t/before g read-tree "$before" || exit 1
if [ -s "$t/added" ]; then
  rules=$t/rules
  mkdir -- "$rules" || exit 1
  g ls-tree -r -z --name-only "$before" | grep -zE '(^|/)\\.gitignore$' |
    GIT_INDEX_FILE=$t/before g checkout-index -f -z --stdin --prefix="$rules/" || exit 1
  sed -z 's,^,./,' "$t/added" | sort -z >"$t/all"
  xargs -0 -r sh -c 'find "$@" -maxdepth 0 -type d -print0' sandyard <"$t/all" |
    (cd -- "$rules" && xargs -0 -r mkdir -p --) || exit 1
  GIT_DIR=$(cd -- "$d" && pwd) GIT_WORK_TREE=$rules patterned -C "$rules" check-ignore --no-index -z --stdin <"$t/all" >"$t/ignored"
  [ $? -le 1 ] || exit 1
  sort -z "$t/ignored" | comm -z -23 "$t/all" - | sed -z 's,^\\./,,' >"$t/added"
fi
if [ -s "$t/added" ]; then
  sed -z 's,^,./,; s,/[^/]*$,,' "$t/added" | sort -zu >"$t/folders"
  xargs -0 -r chmod u+rwx -- <"$t/folders" 2>/dev/null
  xargs -0 -r rm -rf -- <"$t/added" || exit 1
  sed -z '/^\\.$/d; s,^\\./,,' "$t/folders" | xargs -0 -r rmdir -p --ignore-fail-on-non-empty -- 2>/dev/null
fi
if [ -s "$t/changed" ]; then
  GIT_INDEX_FILE=$t/before g checkout-index -f -z --stdin <"$t/changed" || exit 1
fi
[ "$staged" = "$(g rev-parse "$was_index^{{tree}}")" ] || g read-tree "$was_index" || exit 1
g update-index -q --refresh
printf '%s\\0' "$commit" "$(cat "$t/added" "$t/changed" | tr -cd '\\000' | wc -c)" "$again"
cat "$t/added" "$t/changed" | head -z -n {NAMED}
""")


async def work_tree(runner: Runner) -> WorkTree:
    ran = await runner.script(_WORK_TREE, envs=_SIGNED, timeout_s=WORK_S)
    return await parsed(ran.stdout, _parse)


def _parse(output: bytes) -> WorkTree:
    fields = [shown(field) for field in output.split(b"\0", 4 + SKIPPED)]
    if len(fields) < 5 or not all(map(_OID.fullmatch, fields[:2])) or not re.fullmatch("[0-9]{1,9}", fields[3]):
        raise GuestGitError
    commit, head, branch, changed, *skipped = fields[:-1]
    return WorkTree(commit, head, branch or None, changed=int(changed), skipped=tuple(dict.fromkeys(skipped)))


async def restore(runner: Runner, commit: str) -> None:
    ran = await runner.script(_RESTORE, commit, ok=(0, _NOT_A_WORK_TREE), timeout_s=WORK_S)
    if ran.exit_code == _NOT_A_WORK_TREE:
        raise GitFailedError(f"{commit[:12]} is not in the checkout, or is not a saved work tree.")


async def undo(runner: Runner, before: str) -> Undone | None:
    ran = await runner.script(_UNDO, before, envs=_SIGNED, ok=(0, _NOT_A_WORK_TREE), timeout_s=WORK_S)
    if ran.exit_code == _NOT_A_WORK_TREE:
        return None
    undone, again = await parsed(ran.stdout, _parse_undone)
    if not again:
        return undone
    # files that the program's own ignore rules had hidden are visible now
    ran = await runner.script(_UNDO, before, envs=_SIGNED, timeout_s=WORK_S)
    rest, _ = await parsed(ran.stdout, _parse_undone)
    return Undone(undone.commit, count=undone.count + rest.count, paths=(*undone.paths, *rest.paths)[:NAMED])


def _parse_undone(output: bytes) -> tuple[Undone, bool]:
    """Also return whether to undo a second time, because ignore rules were reverted."""
    fields = [shown(field) for field in output.split(b"\0", 3 + NAMED)[:-1]]
    if len(fields) < 3 or not _OID.fullmatch(fields[0]) or not re.fullmatch("[0-9]{1,9}", fields[1]):
        raise GuestGitError
    commit, count, again, *paths = fields
    return Undone(commit, count=int(count), paths=tuple(paths)), bool(again)
