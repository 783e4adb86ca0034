#!/usr/bin/env bash
# Commit and print the new commit.
# Arguments: folder how (everything, paths or staged) message path...
# Exit codes: 92 nothing to commit, 93 conflict markers (files on stderr), 94 rejected (its output on stderr).
. ./enter_checkout.sh
how=$1 message=$2
shift 2
left=$(g diff --name-only --diff-filter=U -z | xargs -0 -r grep -lE '^(<<<<<<<|>>>>>>>) ' -- 2>/dev/null)
if [ -n "$left" ] && [ "$how" != staged ]; then printf '%s\n' "$left" >&2; exit 93; fi
case $how in everything) g add -A || exit 1 ;; paths) g add -A -- "$@" || exit 1 ;; esac
if [ ! -e "$d/MERGE_HEAD" ]; then
  if g rev-parse -q --verify HEAD >/dev/null; then
    g diff --cached --quiet --no-ext-diff --ignore-submodules=none HEAD -- "$@" && exit 92
  elif [ -z "$(g ls-files -- "$@" | head -c 1)" ]; then exit 92; fi
fi
only=()
[ "$how" != paths ] || only=(--only -- "$@")
# hooks write to a file: with a pipe, git would wait for background processes that a hook leaves running
said=$(mktemp) || exit 1
trap 'rm -f -- "$said"' EXIT
hooked commit -q --no-gpg-sign --cleanup=whitespace --message="$message" "${only[@]}" >"$said" 2>&1
if [ $? -ne 0 ]; then tail -c 8000 -- "$said" >&2; exit 94; fi
g rev-parse HEAD
