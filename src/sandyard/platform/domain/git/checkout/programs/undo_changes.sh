#!/usr/bin/env bash
# Restore the files and the index from a commit of save_work_tree.sh, unless HEAD has moved.
# Arguments: folder commit.
# Exit codes: 92 it is not such a commit.
# Prints the current work tree as a commit, the number of reverted files, whether to run this again, and at most 20 names.
# Files that were ignored before do not count as the program's, even if it has changed the ignore rules or added files
# to the index since: the earlier rules are evaluated in a folder that contains nothing else. Read-only folders are made
# writable, because some tools create their caches read-only.
. ./enter_checkout.sh
before=$1
. ./read_work_tree_commit.sh
was_head=$head was_index=$index
. ./commit_work_tree.sh
unset GIT_INDEX_FILE
if [ "$head" != "$was_head" ]; then printf '%s\0' "$commit" 0 ''; exit 0; fi
g diff-tree -r -z --no-renames --diff-filter=A --name-only "$before" "$commit" >"$t/added" || exit 1
g diff-tree -r -z --no-renames --diff-filter=a --name-only "$before" "$commit" >"$t/changed" || exit 1
again=
! grep -qzE '(^|/)\.gitignore$' "$t/added" "$t/changed" || again=1
GIT_INDEX_FILE=$t/before g read-tree "$before" || exit 1
if [ -s "$t/added" ]; then
  rules=$t/rules
  mkdir -- "$rules" || exit 1
  g ls-tree -r -z --name-only "$before" | grep -zE '(^|/)\.gitignore$' |
    GIT_INDEX_FILE=$t/before g checkout-index -f -z --stdin --prefix="$rules/" || exit 1
  sed -z 's,^,./,' "$t/added" | sort -z >"$t/all"
  xargs -0 -r sh -c 'find "$@" -maxdepth 0 -type d -print0' sandyard <"$t/all" |
    (cd -- "$rules" && xargs -0 -r mkdir -p --) || exit 1
  GIT_DIR=$(cd -- "$d" && pwd) GIT_WORK_TREE=$rules patterned -C "$rules" check-ignore --no-index -z --stdin <"$t/all" >"$t/ignored"
  [ $? -le 1 ] || exit 1
  sort -z "$t/ignored" | comm -z -23 "$t/all" - | sed -z 's,^\./,,' >"$t/added"
fi
if [ -s "$t/added" ]; then
  sed -z 's,^,./,; s,/[^/]*$,,' "$t/added" | sort -zu >"$t/folders"
  xargs -0 -r chmod u+rwx -- <"$t/folders" 2>/dev/null
  xargs -0 -r rm -rf -- <"$t/added" || exit 1
  sed -z '/^\.$/d; s,^\./,,' "$t/folders" | xargs -0 -r rmdir -p --ignore-fail-on-non-empty -- 2>/dev/null
fi
if [ -s "$t/changed" ]; then
  GIT_INDEX_FILE=$t/before g checkout-index -f -z --stdin <"$t/changed" || exit 1
fi
[ "$staged" = "$(g rev-parse "$was_index^{tree}")" ] || g read-tree "$was_index" || exit 1
g update-index -q --refresh
printf '%s\0' "$commit" "$(cat "$t/added" "$t/changed" | tr -cd '\000' | wc -c)" "$again"
cat "$t/added" "$t/changed" | head -z -n 20
