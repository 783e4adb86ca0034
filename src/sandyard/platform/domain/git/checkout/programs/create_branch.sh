#!/usr/bin/env bash
# Create a branch and switch to it.
# Arguments: folder name start (empty: HEAD).
# Exit codes: 92 the branch exists, 93 there is no such start.
. ./enter_checkout.sh
name=$1 start=$2
g check-ref-format --branch "$name" >/dev/null 2>&1 || { echo "this is no name for a branch" >&2; exit 1; }
if [ "$(g symbolic-ref -q --short HEAD)" = "$name" ]; then
  [ -n "$start" ] || exit 0
  [ "$(g rev-parse -q --verify --end-of-options "$start^{commit}")" != "$(g rev-parse -q --verify HEAD)" ] || exit 0
fi
! g show-ref -q --verify "refs/heads/$name" || exit 92
if [ -n "$start" ]; then
  start=$(g rev-parse -q --verify --end-of-options "$start^{commit}") ||
    start=$(g rev-parse -q --verify --end-of-options "refs/remotes/origin/$2^{commit}") || exit 93
  g checkout -q --no-track -b "$name" "$start" --
else g checkout -q -b "$name"; fi
