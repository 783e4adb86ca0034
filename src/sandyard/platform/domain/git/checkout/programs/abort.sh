#!/usr/bin/env bash
# Abort the merge or rebase in progress. Prints "ended" if there was one.
# Arguments: folder.
. ./enter_checkout.sh
if [ -d "$d/rebase-merge" ]; then g rebase --abort || exit 1
elif [ -f "$d/rebase-apply/applying" ]; then g am --abort || exit 1
elif [ -d "$d/rebase-apply" ]; then g rebase --abort || exit 1
elif [ -e "$d/MERGE_HEAD" ]; then g merge --abort || exit 1
elif [ -e "$d/CHERRY_PICK_HEAD" ]; then g cherry-pick --abort || exit 1
elif [ -e "$d/REVERT_HEAD" ]; then g revert --abort || exit 1
else exit 0; fi
echo ended
