#!/usr/bin/env bash
# Add the commits of a bundle.
# Arguments: folder bundle shallow-commits (ref-of-the-bundle ref-of-the-checkout)...
. ./enter_checkout.sh
bundle=$1 shallow=$2
shift 2
trap 'rm -f -- "$bundle"' EXIT
. ./extend_shallow_boundary.sh
heads=$(g bundle unbundle "$bundle") || exit 1
declare -A at
while read -r id name; do [ -z "$id" ] || at[$name]=$id; done <<<"$heads"
updates=()
while [ $# -gt 1 ]; do
  [ -n "${at[$1]:-}" ] || { echo "The bundle does not have $1." >&2; exit 1; }
  updates+=("update $2" "${at[$1]}" "")
  shift 2
done
printf '%s\0' "${updates[@]}" | g update-ref --no-deref -z --stdin
