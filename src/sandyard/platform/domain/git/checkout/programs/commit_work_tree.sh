#!/usr/bin/env bash
# Included. Stores the work tree as a commit. Sets commit, head, branch, index, staged (the tree of the index), skipped
# (a file of names) and t (a temporary folder), and exports GIT_INDEX_FILE.
# Works on a copy of the index, which has the dates and sizes of all files, so that only changed files are read again.
# Untracked files of more than 100 MiB are not saved; no forge accepts them either.
t=$(mktemp -d) || exit 1
trap 'rm -rf -- "$t"' EXIT
branch=$(g symbolic-ref -q --short HEAD) || branch=
unborn=
head=$(g rev-parse -q --verify 'HEAD^{commit}') || {
  unborn=1
  head=$(g commit-tree -m 'sandyard: no commit yet' "$(g hash-object -w -t tree /dev/null)") || exit 1
}
index=$(g rev-parse --git-path index)
[ ! -f "$index" ] || cp -- "$index" "$t/index" || exit 1
export GIT_INDEX_FILE=$t/index
staged=$(g write-tree 2>/dev/null) || staged=$(g rev-parse "$head^{tree}") || exit 1
skipped=$t/skipped
: >"$skipped"
g ls-files -z --others --exclude-standard | sed -z 's,^,./,' |
  xargs -0 -r sh -c 'find "$@" -maxdepth 0 -type f -size +102400k -print0' sandyard >"$t/large" 2>/dev/null
excluded=()
while IFS= read -r -d '' path; do
  excluded+=(":(exclude,top,literal)${path#./}")
  printf '%s\0' "${path#./}" >>"$skipped"
done <"$t/large"
if [ ${#excluded[@]} -eq 0 ]; then g add -A --ignore-errors 2>"$t/messages"
else patterned add -A --ignore-errors -- . "${excluded[@]}" 2>"$t/messages"; fi
if [ $? -ne 0 ]; then
  ! grep -qE 'No space left|Disk quota' "$t/messages" || { cat "$t/messages" >&2; exit 1; }
  g ls-files -z --others --modified --exclude-standard >"$t/left"
  while IFS= read -r -d '' path; do
    [ ! -e "$path" ] && [ ! -L "$path" ] || printf '%s\0' "$path" >>"$skipped"
  done <"$t/left"
fi
tree=$(g write-tree) || { cat "$t/messages" >&2; exit 1; }
printf -v message 'sandyard: work tree\n\nbranch: %s\nunborn: %s\n' "$branch" "$unborn"
index_commit=$(g commit-tree -p "$head" -m 'sandyard: index' "$staged") || exit 1
commit=$(g commit-tree -p "$head" -p "$index_commit" -m "$message" "$tree") || exit 1
