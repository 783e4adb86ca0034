#!/usr/bin/env bash
# Write a bundle of a ref, and print its commit, its size and the folder of the bundle ("-": there is nothing new).
# Arguments: folder ref limit known-commit...
# Exit codes: 92 there is no such ref, 93 the bundle is larger than the limit.
# The bundle is created in a separate repository that borrows the checkout's objects: the sent commit has a fixed name
# and cannot change meanwhile, and no ref of the checkout is touched.
. ./enter_checkout.sh
ref=$1 limit=$2
shift 2
object=$(g rev-parse -q --verify --end-of-options "$ref^{object}") || exit 92
commit=$(g rev-parse -q --verify --end-of-options "$ref^{commit}") || exit 92
not=()
if [ $# -gt 0 ]; then
  while read -r id kind _; do [ "$kind" != commit ] || not+=("^$id"); done < <(
    printf '%s\n' "$@" | g cat-file --batch-check)
fi
if [ "$object" = "$commit" ] && [ -z "$(g rev-list -n 1 "$commit" "${not[@]}" --)" ]; then
  printf '%s 0 -\n' "$commit"
  exit 0
fi
t=$(mktemp -d /tmp/.sandyard-send-XXXXXXXXXXXXXXXX) || exit 1
trap 'rm -rf -- "$t"' EXIT
mkdir -p "$t/git/objects/info" "$t/git/refs" || exit 1
objects=$(g rev-parse --git-path objects)
(cd -- "$objects" && pwd -P) >"$t/git/objects/info/alternates" || exit 1
boundary=$(g rev-parse --git-path shallow)
[ ! -f "$boundary" ] || cp -- "$boundary" "$t/git/shallow" || exit 1
printf 'ref: refs/heads/none\n' >"$t/git/HEAD"
printf '%s refs/sandyard/sent\n' "$object" >"$t/git/packed-refs"
version=0 extension=
[ ${#commit} -ne 64 ] || { version=1; extension='[extensions] objectformat = sha256'; }
printf '[core] repositoryformatversion = %s\n[core] bare = true\n%s\n' $version "$extension" >"$t/git/config" || exit 1
git --git-dir="$t/git" -c safe.directory='*' bundle create -q - refs/sandyard/sent "${not[@]}" | head -c $((limit + 1)) >"$t/bundle"
codes=("${PIPESTATUS[@]}")
size=$(wc -c <"$t/bundle")
[ "$size" -le "$limit" ] || exit 93
[ "${codes[0]}" -eq 0 ] && [ "${codes[1]}" -eq 0 ] || exit 1
rm -rf -- "$t/git"
trap - EXIT
printf '%s %s %s\n' "$commit" "$size" "$t"
