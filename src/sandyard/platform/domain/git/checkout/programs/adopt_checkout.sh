#!/usr/bin/env bash
# Turn a sealed checkout into a checkout of a branch.
# Arguments: folder bundle (empty: none) commit base-branch branch name email origin shallow-commits.
# Exit codes: 92 it is another checkout.
# Sessions wait for this, and each git command is a process in the sandbox: what is set already is not written again.
. ./enter_checkout.sh
bundle=$1 commit=$2 base=$3 branch=$4 name=$5 email=$6 origin=$7 shallow=$8
[ -z "$bundle" ] || trap 'rm -f -- "$bundle"' EXIT
declare -A is
while IFS= read -r -d '' entry; do is[${entry%%$'\n'*}]=${entry#*$'\n'}; done < <(
  g config --local -z --get-regexp '^(sandyard\.checkout|user\.name|user\.email|remote\.origin\.url)$')
[ "${is[sandyard.checkout]:-}" != "$branch" ] || exit 0
[ "${is[sandyard.checkout]:-}" = sandyard-prepared ] || exit 92
if [ -n "$bundle" ]; then
  . ./extend_shallow_boundary.sh
  g bundle unbundle "$bundle" >/dev/null || exit 1
fi
read -r at <"$d/HEAD"
if [ "$at" != "$commit" ]; then
  g -c checkout.workers=0 checkout -q -f --detach "$commit" -- || exit 1
fi
printf 'update %s\0%s\0\0' "refs/remotes/origin/$base" "$commit" "refs/heads/$branch" "$commit" |
  g update-ref --no-deref -z --stdin || exit 1
g symbolic-ref HEAD "refs/heads/$branch" || exit 1
[ "${is[user.name]:-}" = "$name" ] || g config user.name "$name" || exit 1
[ "${is[user.email]:-}" = "$email" ] || g config user.email "$email" || exit 1
[ -z "$origin" ] || [ "${is[remote.origin.url]:-}" = "$origin" ] || g config remote.origin.url "$origin" || exit 1
g config sandyard.checkout "$branch"
