#!/usr/bin/env bash
# Print the merge or rebase in progress (empty if none), a NUL byte, and the status.
# Arguments: folder.
. ./enter_checkout.sh
way=
if [ -d "$d/rebase-merge" ] || [ -d "$d/rebase-apply" ]; then way=rebase
elif [ -e "$d/MERGE_HEAD" ]; then way=merge
elif [ -e "$d/CHERRY_PICK_HEAD" ]; then way=cherry-pick
elif [ -e "$d/REVERT_HEAD" ]; then way=revert; fi
printf '%s\0' "$way"
g status --porcelain=v2 -z --branch --no-ahead-behind --untracked-files=all --find-renames --ignore-submodules=dirty
