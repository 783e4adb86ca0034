#!/usr/bin/env bash
# Create a checkout from a bundle, in a folder that begin_checkout.sh has prepared.
# Arguments: folder bundle commit base-branch branch name email origin shallow-commits index pack (branch commit)...
# With an index, the bundle is a plain pack, and `pack` is its name.
# Uses `bundle unbundle` instead of `fetch`, or neither if the pack comes with its index: what our own mirror has
# created need not be checked again.
. ./functions.sh
bundle=$2 commit=$3 base=$4 branch=$5 name=$6 email=$7 origin=$8 shallow=$9
cd -- "$1" || exit 1
shift 9
index=$1 pack=$2
shift 2
trap 'rm -f -- "$bundle" "$index"' EXIT
mkdir -p .git/hooks .git/info && : >.git/sandyard-begun || exit 1
format=sha1
[ ${#commit} -ne 64 ] || format=sha256
g init -q --template= --object-format=$format || exit 1
[ -z "$shallow" ] || printf '%s\n' "$shallow" >.git/shallow || exit 1
if [ -n "$index" ]; then
  chmod 444 "$index" "$bundle" || exit 1
  mv -- "$bundle" ".git/objects/pack/pack-$pack.pack" && mv -- "$index" ".git/objects/pack/pack-$pack.idx" || exit 1
else
  g bundle unbundle "$bundle" >/dev/null || exit 1
fi
rm -f -- "$bundle"
declare -A there
while read -r id kind _; do [ "$kind" != commit ] || there[$id]=1; done < <(
  for id in "$commit" "${@}"; do printf '%s\n' "$id"; done | g cat-file --batch-check 2>/dev/null)
[ -n "${there[$commit]:-}" ] || { echo "The bundle does not have the commit $commit." >&2; exit 1; }
known=$base at=$commit upstream=
while [ $# -gt 1 ]; do
  if [ -n "${there[$2]:-}" ]; then
    g update-ref "refs/remotes/origin/$1" "$2" || exit 1
    [ "$1" != "$branch" ] || upstream=1
  fi
  [ "$1" != "$base" ] || known=
  shift 2
done
[ -z "$known" ] || g update-ref "refs/remotes/origin/$base" "$at" || exit 1
g symbolic-ref refs/remotes/origin/HEAD "refs/remotes/origin/$base" || exit 1
g config user.name "$name" && g config user.email "$email" || exit 1
if [ -n "$origin" ]; then
  g config remote.origin.url "$origin" && g config remote.origin.fetch '+refs/heads/*:refs/remotes/origin/*' || exit 1
fi
g -c checkout.workers=0 checkout -q -f --no-track -B "$branch" "$commit" -- || exit 1
# Byproducts of programs are not work. A repository that has some of them wants them.
byproducts=(__pycache__/ '*.py[cod]' node_modules/)
[ -n "$(g ls-files --cached --ignored "${byproducts[@]/#/--exclude=}" | head -n 1)" ] ||
  printf '%s\n' "${byproducts[@]}" >>.git/info/exclude || exit 1
if [ -n "$upstream" ]; then
  g config "branch.$branch.remote" origin && g config "branch.$branch.merge" "refs/heads/$branch" || exit 1
fi
g config sandyard.checkout "$branch" && rm .git/sandyard-begun
