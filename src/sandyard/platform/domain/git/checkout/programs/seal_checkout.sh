#!/usr/bin/env bash
# Prepare a checkout for a snapshot: detach HEAD at a commit, restore tracked files and ignore the others.
# Arguments: folder commit.
# Prints the restored and then the ignored files: their number, at most 20 names, and an empty name.
# A name that contains a newline cannot be written to a file of patterns.
. ./enter_checkout.sh
commit=$1
mkdir -p "$d/info" || exit 1
t=$(mktemp -d) || exit 1
trap 'rm -rf -- "$t"' EXIT
g diff --name-only -z --no-ext-diff --ignore-submodules=dirty "$commit" -- >"$t/restored" || exit 1
rm -f -- "$d/MERGE_HEAD" "$d/MERGE_MSG" "$d/CHERRY_PICK_HEAD" "$d/REVERT_HEAD" "$d/index.lock"
g checkout -q -f --detach "$commit" -- || exit 1
! g show-ref -q --verify refs/heads/sandyard-prepared || g update-ref -d refs/heads/sandyard-prepared || exit 1
g ls-files -z --others --exclude-standard --directory --no-empty-directory >"$t/ignored" || exit 1
sed -z '/\n/d; s/[][*?\\ !#]/\\&/g; s|^|/|' <"$t/ignored" | tr '\0' '\n' >>"$d/info/exclude" || exit 1
g update-index -q --refresh
for list in restored ignored; do
  printf '%s\0' "$(tr -cd '\000' <"$t/$list" | wc -c)"
  head -z -n 20 -- "$t/$list"
  printf '\0'
done
