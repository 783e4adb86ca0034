#!/usr/bin/env bash
# Set the remote's branch to a commit and make it the upstream of the local branch.
# Arguments: folder branch commit.
. ./enter_checkout.sh
g update-ref "refs/remotes/origin/$1" "$2" || exit 1
g show-ref -q --verify "refs/heads/$1" || exit 0
g config "branch.$1.remote" origin && g config "branch.$1.merge" "refs/heads/$1"
