#!/usr/bin/env bash
# Merge a commit. On conflicts, print git's messages, a NUL byte, and the unmerged index entries.
# Arguments: folder leave ("yes": keep the merge in progress on conflicts) commit message.
# Exit codes: 92 a merge or rebase is in progress, 93 conflicts, 94 conflicts, and the merge could not be undone.
# The work tree is restored before anything is printed, because the reader may stop reading.
. ./enter_checkout.sh
leave=$1 other=$2 message=$3
. ./require_no_merge.sh
other=$(g rev-parse -q --verify --end-of-options "$other^{commit}") || { echo "there is no commit $2" >&2; exit 1; }
g -c merge.verifySignatures=false merge --ff --no-edit --no-verify --no-gpg-sign --no-autostash --no-stat --no-squash \
  -m "$message" "$other" >"$t/messages" 2>&1
code=$?
[ $code -ne 0 ] || exit 0
g ls-files -u -z >"$t/files"
if [ ! -s "$t/files" ]; then
  [ ! -e "$d/MERGE_HEAD" ] || g merge --abort 2>/dev/null || g reset -q --merge
  cat "$t/messages" >&2
  exit 1
fi
if [ -z "$leave" ]; then g merge --abort 2>>"$t/messages" || { cat "$t/messages" >&2; exit 94; }; fi
tr -d '\000' <"$t/messages"
printf '\0'
cat "$t/files"
exit 93
