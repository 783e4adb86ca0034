#!/usr/bin/env bash
# Included. Checks that no merge or rebase is in progress. Defines busy and sets t, a temporary folder.
# Exit codes: 92 one is in progress.
busy() { [ -e "$d/MERGE_HEAD" ] || [ -d "$d/rebase-merge" ] || [ -d "$d/rebase-apply" ]; }
! busy || exit 92
t=$(mktemp -d) || exit 1
trap 'rm -rf -- "$t"' EXIT
