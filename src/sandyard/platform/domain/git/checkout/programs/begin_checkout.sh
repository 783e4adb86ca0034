#!/usr/bin/env bash
# Prepare the folder of a checkout. Prints "found" if it has a complete checkout of the branch.
# Arguments: folder branch.
# Exit codes: 92 another repository or branch, 93 the folder is not empty.
# A checkout is complete when sandyard-begun is gone. An incomplete one holds no work and may be deleted.
. ./functions.sh
mkdir -p -- "$1" && cd -- "$1" || exit 1
if [ -e .git/sandyard-begun ] || { [ -d .git ] && [ -z "$(ls -A .git)" ]; }; then find . -mindepth 1 -delete || exit 1; fi
if [ -e .git ]; then
  marked=$(g config --local sandyard.checkout)
  [ -n "$marked" ] || exit 92
  [ "$marked" = "$2" ] || [ "$(g symbolic-ref -q --short HEAD)" = "$2" ] || exit 92
  echo found
  exit 0
fi
[ -z "$(ls -A)" ] || exit 93
