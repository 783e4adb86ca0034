#!/usr/bin/env bash
# Tag HEAD and print its commit.
# Arguments: folder name message (empty: a lightweight tag).
# Exit codes: 92 the tag exists on another commit.
. ./enter_checkout.sh
name=$1 message=$2
if g show-ref -q --verify "refs/tags/$name"; then
  [ "$(g rev-parse -q --verify "refs/tags/$name^{commit}")" = "$(g rev-parse 'HEAD^{commit}')" ] || exit 92
elif [ -n "$message" ]; then g tag -a --no-sign --cleanup=whitespace --message="$message" -- "$name" HEAD || exit 1
else g tag --no-sign -- "$name" HEAD || exit 1; fi
g rev-parse 'HEAD^{commit}'
