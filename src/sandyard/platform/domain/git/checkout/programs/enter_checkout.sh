#!/usr/bin/env bash
# Included by programs that work on a checkout. Enters the folder $1 and removes it from the arguments. Sets `d`, the
# repository's folder.
# Exit codes: 91 there is no checkout.
. ./functions.sh
{ cd -- "$1" && [ -e .git ]; } 2>/dev/null || exit 91
shift
d=.git; [ -d .git ] || d=$(g rev-parse --git-dir) || exit 1
