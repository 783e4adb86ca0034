#!/usr/bin/env bash
# Included by all programs. Defines git with the platform's options, which the caller passes in `git_options`:
# g (without the hooks of the checkout), hooked (with them), and patterned (without them; paths may be patterns).
# Exit codes: 90 git is not installed.
set -u
# shellcheck disable=SC2154 # git_options is set by program_runner.py
g() { git "${git_options[@]}" --literal-pathspecs -c core.hooksPath=/dev/null "$@"; }
hooked() { git "${git_options[@]}" --literal-pathspecs "$@"; }
patterned() { git "${git_options[@]}" -c core.hooksPath=/dev/null "$@"; }
type -P git >/dev/null || exit 90
