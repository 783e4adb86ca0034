#!/usr/bin/env bash
# Print the uncommitted changes of these paths, then discard them.
# Arguments: folder everything ("yes": everything, and no paths follow) path...
. ./enter_checkout.sh
everything=$1
shift
g status --porcelain=v1 -z --untracked-files=all --no-renames --ignore-submodules=dirty -- "$@"
if [ -n "$everything" ]; then g reset -q --hard && g clean -fdq; exit; fi
g reset -q -- "$@" && g clean -fdq -- "$@" || exit 1
g ls-files -z --modified --deleted -- "$@" | g checkout-index -f -u -z --stdin
