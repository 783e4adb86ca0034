#!/usr/bin/env bash
# Store the work tree as a commit. Print commit, HEAD, branch, number of changed files, and the files that were skipped.
# Arguments: folder.
. ./enter_checkout.sh
. ./commit_work_tree.sh
changed=$(g diff-tree -r -z --name-only --no-renames "$head" "$commit" | tr -cd '\000' | wc -c)
g diff-tree -r -z --no-renames --diff-filter=AM "$head" "$commit" | sed -nz '/^:[0-7]* 160000 /{n;p}' >>"$skipped"
printf '%s\0%s\0%s\0%s\0' "$commit" "$head" "$branch" "$((changed))"
cat "$skipped"
