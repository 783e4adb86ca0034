#!/usr/bin/env bash
# Rebase onto a commit. On conflicts, undo the rebase and print the same as merge.sh.
# Arguments: folder commit.
# Exit codes: 92 a merge or rebase is in progress, 93 conflicts, 94 conflicts, and the rebase could not be undone.
. ./enter_checkout.sh
onto=$1
. ./require_no_merge.sh
onto=$(g rev-parse -q --verify --end-of-options "$onto^{commit}") || { echo "there is no commit $1" >&2; exit 1; }
g -c rebase.updateRefs=false -c rebase.autoSquash=false -c rebase.rebaseMerges=false -c rebase.missingCommitsCheck=ignore \
  rebase -q --no-fork-point --no-autostash --no-gpg-sign --no-verify --no-stat "$onto" >"$t/messages" 2>&1
code=$?
[ $code -ne 0 ] || exit 0
g ls-files -u -z >"$t/files"
if busy; then g rebase --abort 2>>"$t/messages" || { cat "$t/messages" >&2; exit 94; }; fi
if [ ! -s "$t/files" ]; then cat "$t/messages" >&2; exit 1; fi
tr -d '\000' <"$t/messages"
printf '\0'
cat "$t/files"
exit 93
