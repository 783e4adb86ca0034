#!/usr/bin/env bash
# Included. Adds the shallow boundary of a bundle ($shallow), as far as the checkout lacks those commits.
if [ -n "$shallow" ]; then
  boundary=$(g rev-parse --git-path shallow)
  printf '%s\n' "$shallow" | g cat-file --batch-check | while read -r id kind _; do
    [ "$kind" != missing ] || printf '%s\n' "$id"
  done >>"$boundary" || exit 1
fi
