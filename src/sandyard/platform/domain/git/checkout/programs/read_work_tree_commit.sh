#!/usr/bin/env bash
# Included. Checks that $1 is a commit of commit_work_tree.sh. Sets kind (its parents and message), head and index.
# Exit codes: 92 it is not.
kind=$(g log -1 --format='%P%n%B' --end-of-options "$1" -- 2>/dev/null) || exit 92
{ read -r head index more; read -r first; } <<<"$kind"
[ "$first" = 'sandyard: work tree' ] && [ -n "$index" ] && [ -z "$more" ] || exit 92
